"""Guards on both sides of the memory that compiled loops plan reads in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from gpushard.fused.code import loading
from gpushard.fused.short import ways


@contextmanager
def guarded_planning() -> Iterator[None]:
    """Reads with two calls, and room to plan in that has guards on both sides."""
    guarded = []

    def empty(n_words, dtype):
        guarded.append(np.full(n_words + 128, -7, dtype))
        return guarded[-1][64:-64]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "np", SimpleNamespace(empty=empty, int64=np.int64))
        patch.setattr(ways, "one_call", lambda *_: None)
        yield
    for words in guarded:
        assert (words[:64] == -7).all()
        assert (words[-64:] == -7).all()
