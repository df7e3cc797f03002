"""Arguments of a loader -> its checked settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gpushard.arguments import flag, whole_number
from gpushard.errors import OptionError
from gpushard.loader import arguments
from gpushard.loader.arguments import one_of
from gpushard.loader.batches import (
    Form,
    Kind,
    check_exports,
    consumer_stream,
    exporter,
)
from gpushard.loader.fields import Field
from gpushard.loader.memory import Memory
from gpushard.loader.order import Shuffling
from gpushard.loader.places import DevicePlace, HostPlace, Place
from gpushard.loader.ragged import RaggedRows
from gpushard.loader.ranks import Ranks, find_ranks
from gpushard.loader.reading import OnError
from gpushard.loader.shares import Share, Uneven
from gpushard.loader.windows import Origins, Padding

if TYPE_CHECKING:
    from gpushard.devices.base import Device


# Most loads that stores over a network are asked for while another one is read. Each
# has threads of its own, and together they keep the connections of a store busy.
_MOST_ASKED = 8
# Blocks that are mixed where the caller does not say how many.
_DEFAULT_MIXED = 8
# Arguments that make an order, which a sampler has made already.
_ORDERING = (
    "shuffle",
    "replacement",
    "weights",
    "block",
    "buffer_blocks",
    "num_samples",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a loader; attributes not listed here are its parameters.

    Attributes
    ----------
    form, fields, origins
        Form of a batch, the arrays, and where samples begin.
    shuffling
        The order of the samples.
    ranks
        The rank and the world size.
    n_ahead
        Number of loads to read ahead.
    n_epochs
        Number of epochs, from epoch 0 on, that are read ahead; 0 for none.
    device
        The device that batches are made on; None for the host.
    kind, export
        Kind of arrays to hand out, and the function that makes them.
    """

    form: Form
    fields: Sequence[Field]
    origins: Origins
    shuffling: Shuffling
    batch_size: int
    ranks: Ranks
    uneven: Uneven
    drop_last: bool
    n_ahead: int
    n_epochs: int
    device: Device | None
    kind: Kind
    export: Callable[[Any], Any]
    transform: Callable[[Any], Any] | None
    on_error: OnError
    return_index: bool

    @classmethod
    def parse(cls, arrays: Any, given: dict[str, Any]) -> Settings:
        """Settings from the arguments of a loader, by name.

        Raises
        ------
        OptionError, UnsupportedError
            As for `Loader`.
        """
        given = given | dict(_flags(given))
        device = arguments.chosen_device(given["device"], arrays)
        kind = arguments.chosen_kind(given["to"], device)
        padding = _padding(given)
        threads = given["num_threads"]
        if threads is not None:
            threads = whole_number(threads, "num_threads", 1)
        form, fields = arguments.laid_fields(
            arrays,
            num_threads=threads,
            window=given["window"],
            lead=given["lead"],
            conversions={name: given[name] for name in ("dtype", "scale", "offset")},
        )
        if device is not None:
            arguments.check_types(fields, device)
        export, transform = exporter(kind), given["transform"]
        if device is None:
            for one in fields:
                check_exports(export, one, kind)
        if not (transform is None or callable(transform)):
            raise OptionError("transform= must be a function", got=repr(transform))
        if given["return_index"] and "index" in form.names:
            raise OptionError(
                "with return_index=True no array may be named 'index', as the index is",
                hint="give the array another name",
            )
        origins = arguments.laid_origins(fields, given["stride"], padding)
        _refuse_unclear_fill(fields, origins)
        return cls(
            form=form,
            fields=fields,
            origins=origins,
            shuffling=_shuffling(given, fields, origins),
            batch_size=arguments.count(given["batch_size"], "batch_size"),
            ranks=find_ranks(*_told_ranks(given)),
            uneven=one_of(given["uneven"], "uneven", ("drop", "pad", "allow")),
            drop_last=given["drop_last"],
            n_ahead=whole_number(given["prefetch_factor"], "prefetch_factor", 0),
            n_epochs=_n_epochs(given),
            device=device,
            kind=kind,
            export=export,
            transform=transform,
            on_error=one_of(given["on_error"], "on_error", ("raise", "skip")),
            return_index=given["return_index"],
        )

    @property
    def global_batch(self) -> int:
        """Number of samples that all ranks together get in a step."""
        return self.batch_size * self.ranks.world_size

    @property
    def n_finished_ahead(self) -> int:
        """Number of batches to finish ahead."""
        # Cutting batches takes no time, so only a transform is worth a thread.
        return self.n_ahead if self.transform else 0

    @property
    def n_asked(self) -> int:
        """Number of loads that stores are asked for while another one is read.

        One load alone leaves a network idle while its answers are on their way.
        """
        is_far = self.device is None and all(field.is_far for field in self.fields)
        # What a load leaves in memory is not to be asked for by the next one.
        if not is_far or any(field.keeps_chunks for field in self.fields):
            return 0
        return min(self.n_ahead, _MOST_ASKED)

    @property
    def n_read_ahead(self) -> int:
        """Number of loads to finish ahead, or fewer: those asked for take room."""
        return self.n_ahead - max(self.n_asked - 1, 0)

    @property
    def n_queued(self) -> int:
        """Number of places in the queue that the caller takes from."""
        return self.n_finished_ahead or self.n_read_ahead

    def reads_on_into(self, epoch: int) -> bool:
        """Whether an epoch is read ahead while the one before it ends."""
        return self.n_ahead > 0 and epoch < self.n_epochs

    def place(self) -> Place:
        """Place for samples, with its memory."""
        # In addition to the queue: a load being planned, a load being read, its raw
        # rows, and one in use.
        n_loads = self.n_ahead + 4
        n_kept = n_loads * len(self.fields)
        memory = Memory(n_kept)
        if self.device is None:
            return HostPlace(memory, n_loads)
        consumer = consumer_stream(self.kind, self.device)
        n_arrays = sum(len(field.members) for field in self.fields)
        return DevicePlace(
            self.device, memory, n_kept, consumer, n_loads=n_loads, n_arrays=n_arrays
        )

    def exported(self, rows: Any) -> Any:
        """Array of the chosen kind, in the memory of `rows`, or a list of them."""
        if isinstance(rows, RaggedRows):
            return rows.exported(self.exported)
        return self.export(rows if isinstance(rows, np.ndarray) else rows.array())

    def share(self, n: int) -> Share:
        """The rank's part of an epoch of `n` positions."""
        return Share.cut(
            n, self.batch_size, self.ranks, self.uneven, drop_last=self.drop_last
        )

    def facts(self, epoch: int) -> dict[str, Any]:
        """Everything that decides which samples come at which step, as JSON."""
        return {
            "global_batch": self.global_batch,
            "order": self.shuffling.fingerprint(epoch),
            "arrays": {f.name: f.facts() for f in self.fields},
            "windows": self.origins.facts(),
        }


def _flags(given: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    """Arguments that are True or False, with their names."""
    hint = "pass shuffle=True, with block= to shuffle blocks of samples"
    yield "shuffle", flag(given["shuffle"], "shuffle", hint)
    for name in ("drop_last", "replacement", "return_index"):
        yield name, flag(given[name], name)


def _n_epochs(given: dict[str, Any]) -> int:
    """Number of epochs that are read ahead."""
    if given["epochs"] is None:
        return 0
    if given["sampler"] is not None:
        raise OptionError(
            "epochs= has no effect with sampler=, which is not asked for an epoch"
            " before you are in it",
            hint="leave out epochs=",
        )
    return whole_number(given["epochs"], "epochs", 1)


def _padding(given: dict[str, Any]) -> Padding:
    """How windows at the border are padded; there are none among single rows."""
    padding = one_of(given["padding"], "padding", ("drop", "shift", "fill"))
    places = ("window", "stride", "lead")
    if padding != "drop" and all(given[name] is None for name in places):
        raise OptionError(
            "padding= has no effect on single rows, which lie inside the array",
            got=repr(padding),
            hint="pass window=, stride= or lead=, or leave out padding=",
        )
    return padding


def _refuse_unclear_fill(fields: Sequence[Field], origins: Origins) -> None:
    """Refuse to fill samples of joined arrays that have different fill values."""
    for field in fields if origins.n else ():
        values = dict.fromkeys(repr(member.fill_value) for member in field.members)
        if len(values) == 1:
            continue
        outermost = origins.of(np.array([0, origins.n - 1]))
        if field.cut.patches(outermost).is_whole:
            continue
        raise OptionError(
            f"the arrays joined in {field.name} have different fill values, so it is"
            " unclear with which to fill windows beyond them",
            expected="one fill value with padding='fill'",
            got=", ".join(values),
            hint="pass padding='drop' or 'shift', or join arrays with one fill value",
        )


def _told_ranks(given: dict[str, Any]) -> Iterator[int | None]:
    """Rank and world size that the caller gave; None for one that was not given."""
    for name in ("rank", "world_size"):
        value = given[name]
        yield value if value is None else arguments.count(value, name, 0)


def _shuffling(
    given: dict[str, Any], fields: Sequence[Field], origins: Origins
) -> Shuffling:
    n_samples, block = origins.n, given["block"]
    _refuse_contradictions(given, n_samples)
    num_samples = _num_samples(given, n_samples)
    cells = "chunk" if block is None else arguments.block_of(block)
    n_mixed = _DEFAULT_MIXED
    if given["buffer_blocks"] is not None:
        n_mixed = arguments.count(given["buffer_blocks"], "buffer_blocks")
    weights, sampler = given["weights"], given["sampler"]
    return Shuffling(
        grid=arguments.sample_grid(fields, origins, cells),
        seed=whole_number(given["seed"], "seed", 0),
        shuffle=given["shuffle"],
        buffer_blocks=0 if block is None else n_mixed,
        num_samples=num_samples,
        replacement=given["replacement"],
        cumulated=(
            None if weights is None else arguments.cumulated_weights(weights, n_samples)
        ),
        sampler=(
            None if sampler is None else arguments.usable_sampler(sampler, n_samples)
        ),
    )


def _refuse_contradictions(given: dict[str, Any], n_samples: int) -> None:
    """Refuse arguments of the order that exclude one another."""
    if given["sampler"] is not None:
        named = [f"{name}=" for name in _ORDERING if _is_given(given[name])]
        if named:
            raise OptionError(
                "sampler= already gives the order, so no other argument may",
                got=named[0],
                hint="leave out sampler=, or the other argument",
            )
    if given["weights"] is not None and not given["replacement"]:
        raise OptionError(
            "weights= has no effect without replacement=True",
            hint="pass replacement=True, or leave out weights=",
        )
    if given["block"] is not None and (given["replacement"] or not given["shuffle"]):
        raise OptionError(
            "block= needs shuffle=True, and cannot be used with replacement="
        )
    if given["buffer_blocks"] is not None and given["block"] is None:
        raise OptionError(
            "buffer_blocks= has no effect without block=",
            hint="pass block='chunk' with shuffle=True, or leave out buffer_blocks=",
        )
    if n_samples == 0 and given["replacement"]:
        raise OptionError("replacement=True needs at least one sample to draw from")


def _num_samples(given: dict[str, Any], n_samples: int) -> int | None:
    """Number of positions in an epoch; None for one of each sample."""
    if given["num_samples"] is None:
        return None
    n = arguments.count(given["num_samples"], "num_samples", 0)
    if n > n_samples and not given["replacement"]:
        raise OptionError(
            "num_samples= must not exceed the number of samples",
            expected=f"at most {n_samples}",
            got=n,
            hint="draw them with replacement=True",
        )
    return n


def _is_given(value: Any) -> bool:
    return value is not None and value is not False
