"""Weights of the loaders of a mix, and how long an epoch is by them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import OptionError
from gpushard.loader.arguments import finite_sums, weight_numbers

# To find the end of an epoch, its steps are drawn; these take some 20 s.
_MOST_STEPS = 10**9


def weights_by_length(loaders: Sequence[Sized], names: Sequence[Any]) -> list[int]:
    """Number of batches of each loader, which must be its weight."""
    lengths = [len(loader) for loader in loaders]
    if 0 in lengths:
        raise OptionError(
            f"loader {names[lengths.index(0)]} of a mix has no batches, so that its"
            " number of batches cannot be its weight",
            hint="leave out that loader, or pass weights=",
        )
    return lengths


def parsed_weights(weights: Any, names: Sequence[Any]) -> NDArray[np.float64]:
    """Weights, one for each loader, from a sequence or a mapping by name."""
    if isinstance(weights, Mapping):
        if set(weights) != set(names):
            raise OptionError(
                "weights= must name the loaders of the mix",
                expected=", ".join(map(str, names)),
                got=", ".join(map(str, weights)),
            )
        weights = [weights[name] for name in names]
    values = weight_numbers(weights)
    is_usable = values.shape == (len(names),) and np.isfinite(values).all()
    if not (is_usable and (values > 0).all()):
        raise OptionError(
            "weights= must have one positive number for each loader",
            expected=len(names),
            got=values.tolist(),
        )
    finite_sums(values)
    return values


def refuse_endless(
    lengths: Sequence[int],
    weights: NDArray[np.float64],
    names: Sequence[Any],
    stop: str,
) -> None:
    """Refuse an epoch that ends when a loader does that is hardly ever drawn.

    It ends with the first loader that ends, or with the last if `stop` is "restart".

    Raises
    ------
    OptionError
        It would have more than some 10**9 batches.
    """
    with np.errstate(over="ignore"):  # of weights that are nearly zero
        n_steps = np.add(lengths, 1.0) * (weights.sum() / weights)
    last = int(n_steps.argmin() if stop == "first" else n_steps.argmax())
    if n_steps[last] > _MOST_STEPS:
        raise OptionError(
            f"loader {names[last]} of a mix is drawn too rarely: an epoch ends no"
            " sooner than that loader",
            expected=f"at most {_MOST_STEPS:.0e} batches an epoch",
            got=f"some {n_steps[last]:.0e}",
            hint="give it more weight, or pass stop='all'",
        )
