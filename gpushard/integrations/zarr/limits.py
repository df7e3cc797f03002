"""Limits on what arrays may ask for, as zarr's configuration has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpushard.options import DEFAULT, LIMITS, Options, limit_in_words

Setting = Callable[[str, None], Any]
"""Function from the name of a setting, and a default, to its value."""


def configured_limits(setting: Setting) -> tuple[Any, ...]:
    """The value that is set for each limit, unchecked; None if there is none."""
    return tuple(setting(f"gpushard.{name}", None) for name in LIMITS)


def options_of(limits: tuple[Any, ...]) -> Options:
    """Options with `configured_limits`.

    Raises
    ------
    OptionError
        A value is not a possible limit.
    """
    return DEFAULT.but(**dict(zip(LIMITS, limits, strict=True)))


def in_config(hint: str | None) -> str | None:
    """What to do about a limit, in the words of zarr's configuration."""
    said = 'raise it: zarr.config.set({{"gpushard.{name}": ...}})'
    return limit_in_words(hint, said)
