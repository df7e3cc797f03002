"""Rank of this process, and the number of processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

from gpushard.errors import OptionError


class Ranks(NamedTuple):
    """Number of this process, and the number of processes."""

    rank: int
    world_size: int


def find_ranks(rank: int | None, world_size: int | None) -> Ranks:
    """Rank and world size: as given, or as the process group or the launcher says.

    They are looked up in this order: the arguments, an initialised torch.distributed,
    the variables ``RANK`` and ``WORLD_SIZE``, an initialised jax.distributed. Without
    any of them, this process is the only one.

    Raises
    ------
    OptionError
        Only one of the two is given, or they contradict one another.
    """
    if (rank is None) != (world_size is None):
        raise OptionError(
            "rank= and world_size= must be given together, or not at all",
            got=f"rank={rank}, world_size={world_size}",
        )
    if rank is None or world_size is None:
        rank, world_size = next(_known_ranks(), Ranks(0, 1))
    if not 0 <= rank < world_size:
        raise OptionError(
            "rank= must be the number of one of world_size= processes",
            expected=f"0 <= rank < {world_size}",
            got=rank,
        )
    return Ranks(rank, world_size)


def refuse_other_ranks(ranks: Ranks) -> None:
    """Refuse to use `ranks`, found before, if this process has others now.

    Frameworks that start processes by themselves make the group late. A loader made
    before would give every rank all samples.

    Raises
    ------
    OptionError
        The process group or the launcher tells another rank or world size.
    """
    known = next(_known_ranks(), ranks)
    if known != ranks:
        raise OptionError(
            "the loader was made when this process did not have the rank that it has",
            expected="rank {} of {}".format(*known),
            got="rank {} of {}".format(*ranks),
            hint="make the loader after the process group (Lightning: in "
            "train_dataloader), or pass rank= and world_size=",
        )


def _known_ranks() -> Iterator[Ranks]:
    """Ranks that torch, the environment and JAX know of, in this order."""
    # A process group implies that its package is imported, so this imports nothing. Of
    # one that another thread is just importing, names are missing.
    torch: Any = sys.modules.get("torch.distributed")
    if getattr(torch, "is_initialized", _never)():
        yield Ranks(torch.get_rank(), torch.get_world_size())
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        yield Ranks(_number("RANK"), _number("WORLD_SIZE"))
    jax: Any = sys.modules.get("jax")
    if getattr(getattr(jax, "distributed", None), "is_initialized", _never)():
        yield Ranks(jax.process_index(), jax.process_count())


def _never() -> bool:
    return False


def _number(name: str) -> int:
    text = os.environ[name]
    if not text.isdecimal():
        raise OptionError(
            f"the environment variable {name} must be a whole number", got=repr(text)
        )
    return int(text)
