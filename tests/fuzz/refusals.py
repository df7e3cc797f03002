"""What a refusal has to look like."""

from __future__ import annotations

import re
from typing import Any

from gpushard.errors import GpushardError

_MACHINERY = re.compile(r"Traceback|object at 0x|<class")


def assert_is_told(error: GpushardError, **fields: Any) -> None:
    """A sentence of bounded length without anything of the machinery in it.

    `fields` of the error have these values, or any value where `...` is given.
    """
    for name, want in fields.items():
        got = getattr(error, name)
        assert got is not None, name
        assert want in (..., got), (name, got)
    text = str(error)
    assert text.endswith("."), text
    assert len(text) < 2000, text
    assert not _MACHINERY.search(text), text
