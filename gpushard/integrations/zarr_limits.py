"""Limits on what arrays may ask for, as zarr's configuration has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpushard.options import DEFAULT, LIMITS, Options


def configured_options(setting: Callable[[str, None], Any]) -> Options:
    """Options with the limits that are set; `setting` gives one, or its default.

    Raises
    ------
    OptionError
        One of them is no such number.
    """
    limits = {name: setting(f"gpushard.{name}", None) for name in LIMITS}
    return DEFAULT.but(**limits)


def in_config(hint: str | None) -> str | None:
    """What to do about a limit, in the words of zarr's configuration."""
    for name in LIMITS:
        said = f'zarr.config.set({{"gpushard.{name}": ...}})'
        hint = hint and hint.replace(f"raise options.{name}", f"raise it: {said}")
    return hint
