"""`Loader`: stored arrays -> batches of samples for training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self

from gpushard.arguments import whole_number
from gpushard.errors import OptionError
from gpushard.loader.arguments import held_arrays
from gpushard.loader.batches import Batch, Kind
from gpushard.loader.iteration import Epochs, Pass, end, end_all
from gpushard.loader.ranks import refuse_other_ranks
from gpushard.loader.reading import OnError
from gpushard.loader.settings import Settings
from gpushard.loader.shares import Uneven
from gpushard.loader.state import Standing, standing_in, state_of
from gpushard.loader.stats import Progress, figures
from gpushard.loader.torch_data import refuse_workers, tell_torch
from gpushard.loader.windows import Padding
from gpushard.selecting.selection import Ints

if TYPE_CHECKING:
    from gpushard.devices.base import Device


class Loader:
    """Batches of samples out of stored arrays: shuffled, resumable, distributed.

    Each iteration gives the batches of one epoch, and then moves the loader to the next
    epoch. After a break, a new iteration starts the epoch again, unless the break came
    after the last batch. Only one iteration can run at a time.

    Parameters
    ----------
    arrays
        An `Array`, a tuple or dict of arrays, or a group; all are aligned on axis 0. A
        batch has the same form. `concat` joins several arrays to one.
    batch_size
        Number of samples that each rank gets in a step.
    shuffle
        Whether the order is random. Each epoch then has another order.
    seed
        Seed of everything random.
    drop_last
        Whether to leave out the last batch if it is not full.
    sampler
        An order of your own: an iterable of sample numbers, or a function that is
        called with the epoch and returns one. An iterator is refused, because it gives
        one epoch only.
    block
        Shuffles blocks of samples instead of single samples: each "shard" or each
        "chunk" (an inner chunk) of the first array, or blocks of this many samples.
    buffer_blocks
        Number of blocks that are drawn together, by default 8; needs `block`. Their
        samples are mixed, and they are in memory together.
    replacement
        Whether each sample is drawn from all, so that some come more than once.
    num_samples
        Number of samples in an epoch, for all ranks together; by default all samples.
    weights
        Relative probability of each sample, with `replacement`.
    rank, world_size
        Number of this process, and the number of processes; found automatically under
        torch.distributed, ``torchrun`` and jax.distributed. If these tell another rank
        when an iteration begins, that is an error.
    uneven
        What to do with samples that do not make a step for every rank. "drop" leaves
        out less than one sample per rank. "pad" instead adds less than one sample per
        rank from the start of the epoch. "allow" gives all samples to the first ranks,
        which may then have more steps.
    prefetch_factor
        Number of reads, of several batches each, made ahead; 0 reads on demand. Over a
        network, so many (8 at most) are asked for beside the one that is made.
    epochs
        Number of epochs that you will ask for, counted from epoch 0. While the last
        batches of an epoch before the last one are in use, the first ones of the next
        epoch are read ahead. By default each epoch is read when you ask for it.
    num_threads
        Number of threads that decode; by default the number set for the arrays.
    device
        Where batches are decoded and stored: "cpu", "cuda", "cuda:1"; by default where
        the arrays were opened.
    to
        Kind of the arrays in a batch, in the same memory: "numpy" on the host, "cupy"
        on a device, "torch" or "jax" on either.
    dtype, scale, offset
        Elements become ``value * scale + offset``, with data type `dtype` (float32 by
        default if integers are scaled), and are rounded if that has only integers. One
        value for all arrays, or a dict by name.
    window
        Lengths of a sample along the first axes (a patch); by default a sample is a row
        of axis 0. A number means a window of rows. A dict by name gives each array a
        window of its own.
    stride
        Distance between neighbouring windows; by default those of the first array
        touch.
    padding
        What to do with a window that reaches beyond the array. "drop" leaves it out,
        "shift" moves it back inside, and "fill" fills it with the array's fill value.
        With "fill", a window begins at every multiple of `stride` inside the array, so
        several can reach beyond it; "shift" moves at most one along each axis. Both
        need `window`, `stride` or `lead`.
    lead
        Number added to the start of the window along axis 0. A dict by name lets a
        target lie ahead of its input.
    transform
        Called with every batch, in a thread of its own. Its result replaces the batch.
    on_error
        What to do if a sample is damaged, or if the store fails to deliver it after
        three more tries: "raise", or "skip", which makes its batch smaller. With
        "skip", too, a store that fails whatever is read of it is a `StoreError`.
    return_index
        Whether batches come with the numbers of their samples: under the key "index" if
        a batch is a dict, else as ``(batch, index)``. int64, NumPy.

    Raises
    ------
    OptionError
        An argument has an impossible value, or the arrays do not fit together.
    UnsupportedError
        The device or a package is missing, or it has no such data type.

    Examples
    --------
    >>> a = gpushard.open_array("demo.zarr/u")
    >>> with gpushard.Loader(a, batch_size=2, shuffle=True, seed=1) as loader:
    ...     [batch.shape for batch in loader]
    [(2, 3, 241, 480)]
    """

    def __init__(  # noqa: PLR0913 - the arguments of a loader, by keyword only
        self,
        arrays: Any,
        *,
        batch_size: int = 1,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        sampler: Any = None,
        block: Literal["shard", "chunk"] | int | None = None,
        buffer_blocks: int | None = None,
        replacement: bool = False,
        num_samples: int | None = None,
        weights: Any = None,
        rank: int | None = None,
        world_size: int | None = None,
        uneven: Uneven = "drop",
        prefetch_factor: int = 2,
        epochs: int | None = None,
        num_threads: int | None = None,
        device: str | Device | None = None,
        to: Kind | None = None,
        dtype: Any = None,
        scale: Any = None,
        offset: Any = None,
        window: Any = None,
        stride: int | Sequence[int] | Ints | None = None,
        padding: Padding = "drop",
        lead: Any = None,
        transform: Callable[[Any], Any] | None = None,
        on_error: OnError = "raise",
        return_index: bool = False,
    ) -> None:
        given = {k: v for k, v in locals().items() if k not in ("self", "arrays")}
        arrays = held_arrays(arrays)
        self._given = (arrays, given)
        self._finds_ranks = rank is None
        self._settings = settings = Settings.parse(arrays, given)
        self._place = settings.place()
        self._progress = Progress()
        self._standing = Standing(0, 0)
        self._is_resumed = False
        self._is_asked = False  # for its epoch, by `set_epoch`
        self._pass: Pass | None = None
        self._ahead: Epochs | None = None  # which has read into the next epoch
        tell_torch(Loader)

    @property
    def epoch(self) -> int:
        """Number of the current epoch, or of the next one between two epochs."""
        return self._standing.epoch

    @property
    def is_even(self) -> bool:
        """Whether all ranks have the same number of steps for any number of samples."""
        settings = self._settings
        return settings.uneven != "allow" or settings.ranks.world_size == 1

    def set_epoch(self, epoch: int) -> None:
        """Go to an epoch. This ends an iteration through another epoch.

        If `epoch` is the current epoch, a resumed step is kept.

        Parameters
        ----------
        epoch
            From 0 on.
        """
        wanted = whole_number(epoch, "epoch", 0)
        if wanted != self._standing.epoch:
            self._stand(Standing(wanted, 0), is_resumed=False)
        self._is_asked = True

    def _start(self, epoch: int) -> None:
        """Go to the start of an epoch, even if a later step of it was resumed."""
        self._stand(Standing(epoch, 0), is_resumed=False)

    def _stand(self, standing: Standing, *, is_resumed: bool) -> None:
        # A running iteration would move the loader to its own next step.
        self._leave()
        self._standing, self._is_resumed = standing, is_resumed
        self._keep_ahead()

    def _leave(self, *, joins: bool = False) -> None:
        """End the running iteration, if there is one, but not what it reads ahead."""
        # Cleared first, so that the ended iteration does not count this as its end.
        ended, self._pass = self._pass, None
        if ended is not None:
            self._ahead = ended.take_epochs(self._standing)
            ended.close(joins=joins)

    def _keep_ahead(self) -> None:
        """Keep what was read ahead if it is for the place where the loader stands."""
        if self._ahead is not None and not self._ahead.continues_at(self._standing):
            self._drop_ahead()

    def _drop_ahead(self) -> None:
        dropped, self._ahead = self._ahead, None
        end(dropped, joins=False)

    def __len__(self) -> int:
        """Number of batches of this rank in the current epoch."""
        return self._n_steps(self._standing.epoch)

    def _n_steps(self, epoch: int) -> int:
        """Number of batches of this rank in an epoch."""
        settings = self._settings
        return settings.share(settings.shuffling.n(epoch)).n_steps

    def __iter__(self) -> Iterator[Any]:
        self._leave()
        return self._iterate()

    def _iterate(self) -> Iterator[Any]:
        """Batches of the current epoch, from the current step on."""
        settings = self._settings
        self._place.check()
        refuse_workers(device=settings.device is not None)
        if self._finds_ranks:
            refuse_other_ranks(settings.ranks)
        current = self._begin()
        progress, standing = self._progress, self._standing
        n_finished = settings.n_finished_ahead
        progress.begin()
        try:
            batches = current.batches(self._finish, n_finished, progress.waits)
            for batch, value in batches:
                self._standing = Standing(standing.epoch, batch.step + 1)
                progress.handed(
                    len(batch.samples), sum([array.nbytes for array in batch.arrays])
                )
                # A batch held here would keep its memory while the next ones are read.
                del batch
                yield value
                del value
                self._check_current(current)
            self._check_current(current)
            self._standing = Standing(standing.epoch + 1, 0)
            # The threads only have to return. None must be left when the interpreter
            # ends: a thread in the code of another library may not survive that.
            self._leave(joins=True)
        finally:
            # Who counts batches drops the iteration behind the last one, and what was
            # read ahead is for the next epoch then, too.
            if self._pass is current and current.is_continued_at(self._standing):
                self._leave()
            current.close()
            progress.end()

    def _begin(self) -> Pass:
        """A new pass, the only one; at the start of the epoch unless it was resumed."""
        self._leave()
        if not self._is_resumed:
            n_steps = None if self._is_asked else lambda: len(self)
            self._standing = self._standing.restarted(n_steps)
        self._is_resumed = self._is_asked = False
        self._keep_ahead()
        epochs, self._ahead = self._ahead, None
        if epochs is None:
            epochs = Epochs(self._settings, self._place, self._standing, self._progress)
        self._pass = current = Pass(epochs)
        return current

    def _check_current(self, current: Pass) -> None:
        if self._pass is not current:
            raise OptionError(
                "this iteration has ended: the loader was closed, moved to another"
                " place or iterated anew",
                hint="make a second loader to iterate twice at the same time",
            )

    def _finish(self, batch: Batch) -> tuple[Batch, Any]:
        """The batch, and the value that is handed out for it."""
        settings = self._settings
        arrays = [settings.exported(array) for array in batch.arrays]
        index = batch.samples if settings.return_index else None
        value = settings.form.joined(arrays, index)
        if settings.transform is None:
            return batch, value
        try:
            return batch, settings.transform(value)
        except StopIteration as error:
            # The iterators above would take StopIteration for the end of the epoch.
            raise RuntimeError("transform= raised StopIteration") from error

    def state_dict(self) -> dict[str, Any]:
        """Position of the loader, as small JSON; the same on all ranks.

        Counts batches that were handed out, not those that were read ahead.
        """
        return self._state_at(self._standing)

    def _state_at(self, standing: Standing) -> dict[str, Any]:
        return state_of(standing, self._settings.facts(standing.epoch))

    def load_state_dict(self, state: Any) -> None:
        """Go to the position of another loader: its next batch is then the next here.

        Prefetching may differ. The number of ranks may differ too if the global batch
        (`batch_size` times `world_size`) is the same.

        Parameters
        ----------
        state
            Result of `state_dict` on any rank.

        Raises
        ------
        OptionError
            The arrays, the seed, the shuffling or the global batch differ. The message
            says which.
        """
        self._stand(self._standing_in(state), is_resumed=True)

    def _standing_in(self, state: Any) -> Standing:
        """Position that a state tells; raises as `load_state_dict`."""
        settings = self._settings

        def n_steps(epoch: int) -> int:
            return -(-settings.shuffling.n(epoch) // settings.global_batch)

        return standing_in(state, settings.facts, n_steps)

    def stats(self) -> dict[str, Any]:
        """Figures since the loader was made.

        ``batches``, ``samples`` and ``bytes`` were handed out in ``seconds``, with
        their rates. ``waiting_seconds`` is the time that you waited for data.
        ``queue_occupancy`` is the part of the queue that was full when you asked.
        ``stored_bytes_read`` is the payload that was read. ``index_requests`` counts
        shard indexes that were fetched; ``index_cache_hits`` those that were in memory.
        ``chunk_cache_hits`` counts inner chunks that an earlier read had decoded and
        the array's options let it keep. ``read_amplification`` is the number of
        elements decoded for each one wanted. ``samples_skipped`` counts samples that
        were left out; ``reads_retried`` reads that were tried again.
        """
        return figures(self._progress, self._settings.fields, self._settings.n_queued)

    def close(self) -> None:
        """End the iteration and its threads."""
        self._leave()
        self._drop_ahead()
        end_all(self._progress)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        settings = self._settings
        rank, world_size = settings.ranks
        what = f"{', '.join(settings.form.names)}: {settings.origins.n} samples"
        how = f"batches of {settings.batch_size}, rank {rank} of {world_size}"
        return f"<gpushard.Loader of {what} in {how}>"

    def __reduce__(self) -> tuple[Any, ...]:
        arrays, given = self._given
        given = {**given, **self._settings.ranks._asdict()}
        state = {
            "_standing": self._standing,
            "_is_resumed": self._is_resumed,
            "_is_asked": self._is_asked,
            "_finds_ranks": self._finds_ranks,
        }
        return partial(Loader, **given), (arrays,), state
