"""Options of a write, each default with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from gpushard.errors import OptionError

WriteStrategy = Literal["rewrite", "fixed_order", "append_only", "random_write"]
ChunkOrder = Literal["morton", "c", "f"]


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of a write; none of them is stored with the array.

    Attributes
    ----------
    strategy
        How a stored shard is changed; docs/writing.md says what each strategy promises.
        Only "rewrite" replaces shards atomically.
    order
        Order of the inner chunks in a shard. Morton order keeps neighbours along every
        axis together, so it suits reads along any axis.
    write_empty_chunks
        Whether inner chunks that hold nothing but the fill value are stored. Missing
        ones cost an index entry and no read.
    max_unused_fraction
        With "fixed_order" and "random_write", the part of a stored shard that may be
        unused before the shard is written anew. At one half, no shard takes more than
        twice the space it needs.
    durable
        Whether an assignment to files ends only when the disk has the bytes, so that a
        power cut loses nothing. Without, uncompressed writes take half the time. Writes
        in place, conversions, and writes to rolling arrays are always durable.
    """

    strategy: WriteStrategy = "rewrite"
    order: ChunkOrder = "morton"
    write_empty_chunks: bool = False
    max_unused_fraction: float = 0.5
    durable: bool = True

    def __post_init__(self) -> None:
        for name, values in _CHOICES.items():
            if getattr(self, name) not in values:
                raise _impossible(name, " or ".join(map(repr, values)), self)
        fraction: Any = self.max_unused_fraction
        is_number = isinstance(fraction, int | float) and not isinstance(fraction, bool)
        if not (is_number and 0 <= fraction <= 1):
            raise _impossible("max_unused_fraction", "a number from 0 to 1", self)


_CHOICES: dict[str, tuple[Any, ...]] = {
    "strategy": get_args(WriteStrategy),
    "order": get_args(ChunkOrder),
    "write_empty_chunks": (False, True),
    "durable": (False, True),
}


def _impossible(name: str, expected: str, options: Any) -> OptionError:
    return OptionError(
        f"the write option {name} has a value that is not allowed",
        expected=expected,
        got=repr(getattr(options, name)),
    )
