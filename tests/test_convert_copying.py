"""Elements that were copied, compared with those that they were copied from."""

from __future__ import annotations

import numpy as np

from gpushard.converting import copying
from gpushard.converting.copying import same_bits


def test_no_byte_escapes_a_comparison(monkeypatch):
    monkeypatch.setattr(copying, "_COMPARED_NBYTES", 8)
    one = np.arange(6, dtype="i4")
    assert same_bits(one, one.copy())
    for at in range(one.nbytes):
        other = one.copy()
        other.view(np.uint8)[at] ^= 1
        assert not same_bits(one, other)
