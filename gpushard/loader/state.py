"""Position of a loader <-> small JSON, and whether another loader can go on there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpushard.errors import OptionError

_VERSION = 1


@dataclass(frozen=True, slots=True)
class Standing:
    """Position of a loader.

    Attributes
    ----------
    epoch
        Number of the epoch.
    step
        Number of batches of the epoch that were handed out.
    """

    epoch: int
    step: int

    def restarted(self, n_steps: Callable[[], int] | None) -> Standing:
        """Start of the epoch, or of the next one if all its batches were handed out.

        A consumer that counts batches, as Lightning does, never asks for one too many.
        So its iteration does not end by itself, and the epoch stays the current one.

        Parameters
        ----------
        n_steps
            Function that counts the batches of the epoch; None stays in the epoch.
        """
        is_over = n_steps is not None and self.step > 0 and n_steps() <= self.step
        return Standing(self.epoch + is_over, 0)


def state_of(standing: Standing, facts: Mapping[str, Any]) -> dict[str, Any]:
    """State to store: a dict of JSON's types.

    Parameters
    ----------
    facts
        Everything that decides which samples come at which step.
    """
    return {
        "version": _VERSION,
        "epoch": standing.epoch,
        "step": standing.step,
        **facts,
    }


def parsed_standing(state: Any) -> Standing:
    """Position of a loader that a stored state tells.

    Raises
    ------
    OptionError
        This is no state of a loader, or its version is unknown.
    """
    if not isinstance(state, Mapping):
        raise OptionError(
            "the state of a loader must be a mapping", got=type(state).__name__
        )
    if state.get("version") != _VERSION:
        raise OptionError(
            "the state was made by another version of the loader",
            expected=f"version {_VERSION}",
            got=repr(state.get("version")),
        )
    epoch, step = state.get("epoch"), state.get("step")
    for number in (epoch, step):
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise OptionError(
                "the epoch and the step in the state of a loader must be whole numbers",
                got=repr(number),
            )
    return Standing(epoch, step)  # type: ignore[arg-type]


def refuse_other(state: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Refuse a state of a loader whose samples come in another order than here.

    Raises
    ------
    OptionError
        Something that decides the order differs; the message names it.
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
    """Facts by name; the facts of a group get names of their own."""
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
