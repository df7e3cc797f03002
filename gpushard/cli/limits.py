"""Limits on what arrays may ask for: how the command line sets and names them."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from gpushard.errors import OptionError
from gpushard.options import DEFAULT, GIB, KIB, LIMITS, MIB, Options, limit_in_words

Limits = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        metavar="NAME=SIZE",
        help="Limit on what arrays may ask for, such as max_chunk_nbytes=4GiB.",
    ),
]

_UNITS = {
    "": 1,
    "B": 1,
    "KiB": KIB,
    "MiB": MIB,
    "GiB": GIB,
    "TiB": KIB * GIB,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}
# Python converts no number of thousands of digits.
_SIZE_TEXT = re.compile(r"([0-9]{1,40}(?:\.[0-9]{1,40})?)\s*([A-Za-z]*)")


def options_of(limits: list[str] | None) -> Options:
    """Options with the limits that are given as ``NAME=SIZE``.

    Raises `OptionError` if one has no such name, is no size, or is out of its bounds.
    """
    sizes: dict[str, int] = {}
    for text in limits or ():
        name, _, size = text.partition("=")
        if name not in LIMITS:
            raise OptionError(
                "--limit names no limit",
                expected=", ".join(f"{known}=SIZE" for known in LIMITS),
                got=repr(text),
            )
        sizes[name] = _size_in_bytes(size)
    return DEFAULT.but(**sizes)


def limit_hint(hint: str | None) -> str | None:
    """What to do about a limit, in the words of the command line."""
    return limit_in_words(hint, "raise it with --limit {name}=SIZE")


def _size_in_bytes(text: str) -> int:
    found = _SIZE_TEXT.fullmatch(text.strip())
    unit = None if found is None else _UNITS.get(found[2])
    if found is None or unit is None:
        raise OptionError(
            "--limit was given a size that it cannot read",
            expected="such as 4GiB, 512MiB or a number of bytes",
            got=repr(text),
        )
    return int(float(found[1]) * unit) if "." in found[1] else int(found[1]) * unit
