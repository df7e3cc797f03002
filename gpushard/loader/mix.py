"""`Mix`: several loaders -> one sequence of batches, drawn at random by weight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from gpushard.arguments import flag, items, whole_number
from gpushard.errors import OptionError
from gpushard.loader.arguments import one_of
from gpushard.loader.loader import Loader
from gpushard.loader.mix_weights import (
    parsed_weights,
    refuse_endless,
    weights_by_length,
)
from gpushard.loader.permutation import uniform
from gpushard.loader.state import (
    Standing,
    count_in,
    list_in,
    standing_in,
    state_of,
)
from gpushard.loader.torch_data import tell_torch

Stop = Literal["first", "all", "restart"]

# Purpose of random numbers that nothing else uses; see `order`.
_MIX = 4
# Offset of the epochs of a loader that restarts, far from the epochs of the mix.
_ROUND = 1_000_000
_SUMMED = ("batches", "samples", "bytes", "waiting_seconds", "samples_skipped")
_N_DRAWS = 4096


class Mix:
    """Batches of several loaders: each step takes the next batch of a random loader.

    The seed, the epoch and the step decide which loader gives the batch. So all ranks
    draw the same loaders.

    Parameters
    ----------
    loaders
        Loaders, in a list or by name.
    weights
        Relative probability of each loader, in a list or by name; by default its number
        of batches. They need not add up to 1.
    seed
        Seed of the draws.
    stop
        When an epoch ends. "first": when a loader is drawn that has no batch left.
        "all": when no loader has a batch left; only loaders with batches are drawn.
        "restart": when each loader has reached its end once; a loader that reaches its
        end sooner begins its next epoch.
    return_source
        Whether batches come as ``(batch, source)``, with their loader's name or number.

    Raises
    ------
    OptionError
        There are no loaders, or one of them twice or with `epochs`, the weights are not
        positive numbers, or the ranks would not take the same steps.

    Examples
    --------
    >>> a = gpushard.open_array("demo.zarr/u")
    >>> loaders = {"u": gpushard.Loader(a), "again": gpushard.Loader(a)}
    >>> with gpushard.Mix(loaders, stop="all", return_source=True) as mix:
    ...     sorted(source for _, source in mix)
    ['again', 'again', 'u', 'u']
    """

    def __init__(
        self,
        loaders: Mapping[str, Loader] | Sequence[Loader],
        *,
        weights: Mapping[str, float] | Sequence[float] | None = None,
        seed: int = 0,
        stop: Stop = "first",
        return_source: bool = False,
    ) -> None:
        is_named = isinstance(loaders, Mapping)
        given_loaders = loaders.values() if is_named else loaders
        self._loaders = items(given_loaders, "loaders", "a list or dict of loaders")
        self._names = list(loaders) if is_named else list(range(len(self._loaders)))
        if not self._loaders:
            raise OptionError("a mix needs at least one loader, but got none")
        for loader in self._loaders:
            if not isinstance(loader, Loader):
                raise OptionError(
                    "a mix takes only loaders",
                    got=type(loader).__name__,
                    hint="pass objects of gpushard.Loader",
                )
        if len({id(loader) for loader in self._loaders}) < len(self._loaders):
            raise OptionError(
                "a loader is in the mix twice, and has one iteration at a time",
                hint="make a loader for each place in the mix, or change its weight",
            )
        if not all(loader.is_even for loader in self._loaders):
            raise OptionError(
                "the ranks of a mix would not take the same number of steps",
                got="uneven='allow'",
                hint="make the loaders with uneven='drop' or 'pad'",
            )
        if any(loader._settings.n_epochs for loader in self._loaders):  # noqa: SLF001
            raise OptionError(
                "epochs= has no effect in a mix, which begins its loaders itself",
                hint="make the loaders without epochs=",
            )
        if weights is None:
            weights = weights_by_length(self._loaders, self._names)
        self._weights = parsed_weights(weights, self._names)
        self._seed = whole_number(seed, "seed", 0)
        self._stop: Stop = one_of(stop, "stop", ("first", "all", "restart"))
        self._return_source = flag(return_source, "return_source")
        self._standing = Standing(0, 0)
        self._rounds = [0] * len(self._loaders)
        self._is_resumed = False
        self._is_asked = False  # for its epoch, by `set_epoch`
        self._pass: object = None
        tell_torch(Mix)

    @property
    def epoch(self) -> int:
        """Number of the current epoch, or of the next one between two epochs."""
        return self._standing.epoch

    def set_epoch(self, epoch: int) -> None:
        """Go to an epoch. This ends an iteration through another epoch.

        If `epoch` is the current epoch, a resumed step is kept.
        """
        wanted = whole_number(epoch, "epoch", 0)
        if wanted != self._standing.epoch:
            self._stand(Standing(wanted, 0))
        self._is_asked = True

    def _stand(self, standing: Standing) -> None:
        self._standing, self._is_resumed = standing, False
        self._pass = None
        self._rounds = [0] * len(self._loaders)

    def __len__(self) -> int:
        """Number of batches in the current epoch.

        Raises
        ------
        OptionError
            They would be more than some 10**9, by the weights.
        """
        # Loaders may stand in another epoch: the last one, or one that they repeat.
        return self._n_steps(self._standing.epoch)

    def _n_steps(self, epoch: int) -> int:
        """Number of batches in an epoch."""
        lengths = [loader._n_steps(epoch) for loader in self._loaders]  # noqa: SLF001
        if self._stop == "all":
            return sum(lengths)
        ends = self._ends(lengths, epoch)
        return min(ends) if self._stop == "first" else max(ends)

    def _ends(self, lengths: Sequence[int], epoch: int) -> list[int]:
        """Steps at which loaders are found at their end: the first one, or all."""
        refuse_endless(lengths, self._weights, self._names, self._stop)
        n_wanted = 1 if self._stop == "first" else len(lengths)
        found: dict[int, int] = {}
        drawn, step = [0] * len(lengths), 0
        while len(found) < n_wanted:
            steps = np.arange(step, step + _N_DRAWS)
            draws = self._draws(steps, self._weights, epoch)
            for k, length in enumerate(lengths):
                at = np.flatnonzero(draws == k)
                if 0 <= length - drawn[k] < len(at):
                    found[k] = step + int(at[length - drawn[k]])
                drawn[k] += len(at)
            step += _N_DRAWS
        return list(found.values())

    def _draws(
        self, steps: NDArray[np.int64], weights: NDArray[np.float64], epoch: int
    ) -> Any:
        """Numbers of the loaders drawn at `steps`: int64, of the same shape."""
        reach = np.cumsum(weights)
        number = uniform(steps, self._seed, epoch, _MIX)
        return np.searchsorted(reach, number * reach[-1], side="right")

    def __iter__(self) -> Iterator[Any]:
        self._pass = None  # the iteration that runs has ended
        return self._iterate()

    def _begin(self) -> object:
        """A new pass, the only one; at the start of the epoch unless it was resumed."""
        if not self._is_resumed:
            n_steps = None if self._is_asked else lambda: len(self)
            self._stand(self._standing.restarted(n_steps))
            for loader in self._loaders:
                loader._start(self._standing.epoch)  # noqa: SLF001
        self._is_resumed = self._is_asked = False
        self._pass = current = object()
        return current

    def _iterate(self) -> Iterator[Any]:
        # Not before the first batch is asked for: until then, others may move the mix.
        current = self._begin()
        iterators = [iter(loader) for loader in self._loaders]
        try:
            yield from self._batches(current, iterators)
        finally:
            # An error of one that is kept keeps this frame, which knows the others.
            for iterator in iterators:
                iterator.close()

    def _batches(self, current: object, iterators: list[Any]) -> Iterator[Any]:
        epoch, step = self._standing.epoch, self._standing.step
        begun_again: int | None = None  # a loader that has not given a batch since
        while (k := self._drawn(step)) is not None:
            try:
                batch = next(iterators[k])
            except StopIteration:
                self._rounds[k] += 1
                if self._is_over():
                    break
                if self._stop == "restart":
                    if begun_again == k:  # the same step would draw it for ever
                        raise self._nothing_left(k) from None
                    iterators[k], begun_again = self._again(k), k
                continue
            except Exception as error:
                error.add_note(f"in loader {self._names[k]} of a mix")
                raise
            step, begun_again = step + 1, None
            self._standing = Standing(epoch, step)
            yield (batch, self._names[k]) if self._return_source else batch
            del batch
            if self._pass is not current:
                raise OptionError(
                    "this iteration has ended: the mix was closed, moved to another"
                    " place or iterated anew"
                )
        self._stand(Standing(epoch + 1, 0))
        for loader in self._loaders:
            loader.close()

    def _drawn(self, step: int) -> int | None:
        """Number of the loader for a step; None if no loader has a batch left."""
        weights = self._weights
        if self._stop == "all":
            weights = np.where(np.array(self._rounds) > 0, 0.0, weights)
            if not weights.any():
                return None
        return int(self._draws(np.array([step]), weights, self._standing.epoch)[0])

    def _is_over(self) -> bool:
        """Whether the epoch is over, after a loader was found at its end."""
        return self._stop == "first" or all(self._rounds)

    def _again(self, k: int) -> Any:
        loader = self._loaders[k]
        loader.set_epoch(self._standing.epoch + self._rounds[k] * _ROUND)
        if not len(loader):
            raise OptionError(
                f"loader {self._names[k]} of a mix has no batches to repeat"
            )
        return iter(loader)

    def _nothing_left(self, k: int) -> OptionError:
        return OptionError(
            f"loader {self._names[k]} of a mix has no batches to repeat, because none"
            " of its samples could be read",
            got="on_error='skip'",
            hint="pass on_error='raise' to see why, leave out that loader, or pass"
            " stop='all'",
        )

    def _facts(self) -> dict[str, Any]:
        mix = {
            "loaders": list(self._names),
            "weights": self._weights.tolist(),
            "seed": self._seed,
            "stop": self._stop,
        }
        return {"mix": mix}

    def state_dict(self) -> dict[str, Any]:
        """Positions of the mix and its loaders, as small JSON; same on all ranks."""
        standing, rounds = self._standing, list(self._rounds)
        states = [loader.state_dict() for loader in self._loaders]
        if standing.step == 0:  # until the first batch, loaders may stand elsewhere
            rounds = [0] * len(rounds)
            states = [loader._state_at(standing) for loader in self._loaders]  # noqa: SLF001
        return {
            **state_of(standing, self._facts()),
            "rounds": rounds,
            "states": states,
        }

    def load_state_dict(self, state: Any) -> None:
        """Go to the position of another mix: its next batch is then the next here.

        Raises
        ------
        OptionError
            The mix or one of its loaders differs, or they are at places where they are
            never together. The message says in what.
        """
        standing = standing_in(state, lambda _: self._facts(), self._n_steps)
        states = list_in(state, "states", len(self._loaders))
        rounds = self._rounds_in(state, standing)
        resumed = list(zip(self._loaders, states, rounds, strict=True))
        # All are looked at before one moves: a mix whose state is refused goes on.
        for loader, its, n_rounds in resumed:
            found = loader._standing_in(its)  # noqa: SLF001
            self._refuse_elsewhere(found.epoch, standing.epoch, n_rounds)
        for loader, its, _ in resumed:
            loader.load_state_dict(its)
        self._stand(standing)
        self._rounds = rounds
        self._is_resumed = True

    def _rounds_in(self, state: Any, standing: Standing) -> list[int]:
        """How often each loader was at its end, as a state tells."""
        # A loader that begins again gives at least one batch before its next end.
        most = {"first": 0, "all": 1, "restart": standing.step}[self._stop]
        rounds = list_in(state, "rounds", len(self._loaders))
        return [count_in(n, "rounds", most if standing.step else 0) for n in rounds]

    def _refuse_elsewhere(self, epoch: int, own: int, n_rounds: int) -> None:
        """Refuse an epoch of a loader that it does not reach in epoch `own`."""
        beyond = _ROUND if self._stop == "restart" else 1
        if epoch != own + n_rounds * beyond:
            raise OptionError(
                "a loader of the state is in another epoch than its mix",
                expected=own + n_rounds * beyond,
                got=epoch,
                hint="pass what state_dict() of the mix returned, whole and unchanged",
            )

    def stats(self) -> dict[str, Any]:
        """Sums of the loaders' figures, with the figures of each under ``loaders``."""
        each = [loader.stats() for loader in self._loaders]
        sums = {name: sum(figures[name] for figures in each) for name in _SUMMED}
        return {**sums, "loaders": dict(zip(self._names, each, strict=True))}

    def close(self) -> None:
        """End the iteration and its threads."""
        self._pass = None
        for loader in self._loaders:
            loader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        shares = self._weights / self._weights.sum()
        pairs = zip(self._names, shares, strict=True)
        what = ", ".join(f"{name}: {share:.0%}" for name, share in pairs)
        return f"<gpushard.Mix of {what}>"
