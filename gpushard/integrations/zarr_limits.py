"""Limits on what arrays may ask for, as zarr's configuration has them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpushard.options import DEFAULT, LIMITS, Options, limit_in_words

if TYPE_CHECKING:
    from gpushard.errors import UnsupportedError
    from gpushard.layout import ArrayLayout
    from gpushard.source import Source

Setting = Callable[[str, None], Any]
"""Gives what is set under a name, or its default."""


@dataclass(slots=True)
class Prepared:
    """What is ready for the next reads under the limits of zarr's configuration.

    Attributes
    ----------
    limits
        They, as they were set.
    options
        The same, checked.
    layout
        The array's, its path yet unknown, or why there is none.
    sources
        Path of the array in its store -> source.
    """

    limits: tuple[Any, ...]
    options: Options
    layout: ArrayLayout | UnsupportedError
    sources: dict[str, Source] = field(default_factory=dict[str, "Source"])


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
