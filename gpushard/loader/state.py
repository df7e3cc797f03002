"""Position of a loader <-> small JSON, and whether another loader can go on there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpushard.errors import OptionError

_VERSION = 1
_RESUME_HINT = "pass what state_dict() returned, whole and unchanged"


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


def standing_in(
    state: Any,
    facts: Callable[[int], Mapping[str, Any]],
    n_steps: Callable[[int], int],
) -> Standing:
    """Position that a stored state tells, if this loader can go on there.

    Parameters
    ----------
    facts, n_steps
        Functions that tell the facts and the number of batches of an epoch.

    Raises
    ------
    OptionError
        This is no state of a loader, its version is unknown, its position is beyond the
        epoch, or something that decides the order of the samples differs.
    """
    standing = parsed_standing(state)
    _refuse_other(state, facts(standing.epoch))
    count_in(standing.step, "step", n_steps(standing.epoch), "no epoch is so long")
    return standing


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
    if "version" not in state:
        raise OptionError(
            "the state is not one of a loader",
            got=repr(dict(state)),
            hint="pass what state_dict() of a loader returned, whole and unchanged",
        )
    version = state["version"]
    if type(version) is not int or version != _VERSION:
        raise OptionError(
            "the state was made by another version of the loader",
            expected=f"version {_VERSION}",
            got=repr(version),
        )
    return Standing(
        count_in(state.get("epoch"), "epoch"), count_in(state.get("step"), "step")
    )


def count_in(
    value: Any, name: str, most: int | None = None, hint: str = _RESUME_HINT
) -> int:
    """A count that a stored state tells under `name`, from 0 to `most`.

    Raises
    ------
    OptionError
        It is no such number; JSON has neither NumPy's integers nor whole floats.
    """
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if not is_number or value < 0 or (most is not None and value > most):
        above = "" if most is None else f" to {most}"
        raise OptionError(
            f"the state of a loader has an impossible {name}",
            expected=f"a whole number from 0{above}",
            got=repr(value),
            hint=hint,
        )
    return value


def list_in(state: Mapping[str, Any], name: str, n: int) -> list[Any]:
    """The entries, one for each of `n` loaders, that a mix's state has under `name`.

    Raises
    ------
    OptionError
        It has no such list.
    """
    entries = state.get(name)
    if not isinstance(entries, list) or len(entries) != n:
        is_list = isinstance(entries, list)
        raise OptionError(
            f"the state must be that of a mix of as many loaders, but not its {name}",
            expected=f"a list of {n}",
            got=f"a list of {len(entries)}" if is_list else repr(entries),
            hint=_RESUME_HINT,
        )
    return entries


def _refuse_other(state: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Refuse a state of a loader whose samples come in another order than here.

    Raises
    ------
    OptionError
        Something that decides the order differs; the message names it.
    """
    theirs = _flat({k: v for k, v in state.items() if k in facts})
    ours = _flat(facts)
    names = [n for n in {**ours, **theirs} if not _is_same(theirs.get(n), ours.get(n))]
    if names:
        raise OptionError(
            f"the state belongs to a loader that differs in {', '.join(names)}",
            expected={name: ours.get(name) for name in names},
            got={name: theirs.get(name) for name in names},
            hint="resume with the same arrays, seed, shuffling and global batch",
        )


def _is_same(theirs: Any, ours: Any) -> bool:
    try:
        return bool(theirs == ours)
    except ValueError:  # NumPy's arrays, which are no JSON
        return False


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
