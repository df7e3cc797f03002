"""Limits on what arrays may ask for, as zarr's configuration has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpushard.options import DEFAULT, LIMITS, Options, limit_in_words

Setting = Callable[[str, None], Any]
"""Gives what is set under a name, or its default."""


def configured_limits(setting: Setting) -> tuple[Any, ...]:
    """What is set for each of the limits, unchecked; None where nothing is."""
    return tuple(setting(f"gpushard.{name}", None) for name in LIMITS)


def options_of(limits: tuple[Any, ...]) -> Options:
    """Options with `configured_limits`.

    Raises
    ------
    OptionError
        One of them is no such number.
    """
    return DEFAULT.but(**dict(zip(LIMITS, limits, strict=True)))


def in_config(hint: str | None) -> str | None:
    """What to do about a limit, in the words of zarr's configuration."""
    said = 'raise it: zarr.config.set({{"gpushard.{name}": ...}})'
    return limit_in_words(hint, said)
