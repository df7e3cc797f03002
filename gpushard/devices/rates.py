"""Decoding speeds of a device: those measured here once, or else the defaults."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Any

from gpushard.cached_files import cache_directory, keep_file
from gpushard.devices.placement import RATES, Rates

# 2: with `Rates.together`.
_VERSION = 2


def kept_rates(model: str) -> Mapping[str, Rates] | None:
    """Rates that were measured for a `model` of device; None if there are none.

    Codings that were not measured get the rates of `placement.RATES`.
    """
    try:
        content = json.loads(_path(model).read_text(encoding="utf-8"))
        found = {name: _parsed(rates) for name, rates in content["rates"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # a file that cannot be read counts as none
    if content.get("version") != _VERSION:
        return None
    return MappingProxyType({**RATES, **found})


def keep_rates(model: str, found: Mapping[str, Rates]) -> Path:
    """Path of a new file that keeps the rates of a `model` for later processes."""
    rates = {name: asdict(rates) for name, rates in found.items()}
    content = {"version": _VERSION, "model": model, "rates": rates}
    path = _path(model)
    keep_file(path, json.dumps(content, indent=1).encode())
    return path


def _parsed(rates: Mapping[str, Any]) -> Rates:
    names = ("device", "stream", "host", "together")
    numbers = [float(rates[name]) for name in names]
    if not all(isfinite(number) and number > 0 for number in numbers):
        raise ValueError(numbers)
    return Rates(*numbers)


def _path(model: str) -> Path:
    name = re.sub(r"[^A-Za-z0-9.]+", "-", model).strip("-")
    return cache_directory() / "rates" / f"{name}.json"
