"""Where a loader stands, as small JSON, and whether another one can go on there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpushard.errors import OptionError

_VERSION = 1


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a loader stands.

    Attributes
    ----------
    epoch
        Number of the epoch.
    step
        Batches of it that were handed out.
    """

    epoch: int
    step: int


def state_of(standing: Standing, facts: Mapping[str, Any]) -> dict[str, Any]:
    """State to be stored: a dict of JSON's types.

    Parameters
    ----------
    facts
        What decides which samples come at which step.
    """
    return {
        "version": _VERSION,
        "epoch": standing.epoch,
        "step": standing.step,
        **facts,
    }


def parsed_standing(state: Any) -> Standing:
    """Where a stored state says that a loader stood.

    Raises
    ------
    OptionError
        It is no state of a loader, or of a version that is not known.
    """
    if not isinstance(state, Mapping):
        raise OptionError("this is no state of a loader", got=type(state).__name__)
    if state.get("version") != _VERSION:
        raise OptionError(
            "the state was not made by this version of the loader",
            expected=f"version {_VERSION}",
            got=repr(state.get("version")),
        )
    epoch, step = state.get("epoch"), state.get("step")
    for number in (epoch, step):
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise OptionError(
                "the state of a loader counts in whole numbers", got=repr(number)
            )
    return Standing(epoch, step)  # type: ignore[arg-type]


def refuse_other(state: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Refuse a state whose samples come in another order than this loader's.

    Raises
    ------
    OptionError
        Something differs that decides the order; the message names it.
    """
    theirs = _flat({k: v for k, v in state.items() if k in facts})
    ours = _flat(facts)
    names = [n for n in {**ours, **theirs} if theirs.get(n) != ours.get(n)]
    if names:
        raise OptionError(
            f"the state belongs to a loader that differs in {', '.join(names)}",
            expected={name: ours.get(name) for name in names},
            got={name: theirs.get(name) for name in names},
            hint="resume with the same arrays, seed, shuffling and global batch",
        )


def _flat(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts by name; those of a group are named by themselves."""
    flat: dict[str, Any] = {}
    for name, value in facts.items():
        if isinstance(value, Mapping):
            flat |= {
                f"{name} {inner}" if name == "arrays" else inner: fact
                for inner, fact in value.items()
            }
        else:
            flat[name] = list(value) if isinstance(value, tuple) else value
    return flat
