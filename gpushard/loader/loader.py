"""`Loader`: stored arrays -> batches of samples for training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from gpushard.arguments import whole_number
from gpushard.errors import OptionError
from gpushard.loader.batches import Batch, Kind
from gpushard.loader.iteration import Pass
from gpushard.loader.reading import OnError, Reader
from gpushard.loader.settings import Settings
from gpushard.loader.shares import Uneven
from gpushard.loader.state import Standing, parsed_standing, refuse_other, state_of
from gpushard.loader.stats import Progress, figures
from gpushard.loader.torch_data import refuse_workers, tell_torch
from gpushard.loader.windows import Padding

if TYPE_CHECKING:
    from gpushard.devices.base import Device


class Loader:
    """Batches of samples out of stored arrays: shuffled, resumable, distributed.

    Iterating gives the batches of one epoch and then moves on to the next; breaking off
    and iterating anew begins the epoch again. Only one iteration runs at a time.

    Parameters
    ----------
    arrays
        An `Array`, a tuple or a dict of them (or a group), aligned on axis 0; a batch
        has the same form. `concat` makes one of several.
    batch_size
        Samples a step and rank.
    shuffle
        Whether the order is random, another one each epoch.
    seed
        Of everything random.
    drop_last
        Whether a last batch that is not full is left out.
    sampler
        Your own order: whole numbers, or what is called with the epoch and gives some;
        no iterator, which gives one epoch only.
    block
        Shuffles blocks of samples, "shard", "chunk" (an inner chunk) of the first array
        or a number of samples, instead of single ones.
    buffer_blocks
        Blocks that are drawn together, and their samples mixed; they are in memory
        together.
    replacement
        Whether each sample is drawn from all, so that some come twice.
    num_samples
        Samples an epoch, of all ranks; all by default.
    weights
        How likely each sample is drawn, with `replacement`.
    rank, world_size
        Which of how many processes this is; found by itself under torch.distributed,
        ``torchrun`` and jax.distributed.
    uneven
        What does not make a step for every rank: "drop" leaves less than one sample a
        rank out, "pad" repeats as many from the epoch's start, "allow" gives all of it
        to the first ranks, whose steps may then be more.
    prefetch_factor
        Reads (of several batches each) made ahead; 0 reads when you ask.
    num_threads
        Threads that decode; by default those of the arrays.
    device
        Where batches are decoded and lie: "cpu", "cuda", "cuda:1"; by default where
        the arrays were opened.
    to
        Kind of the arrays of a batch, in the same memory: "numpy" on the host, "cupy"
        on a device, "torch" or "jax" on both.
    dtype, scale, offset
        Elements become ``value * scale + offset``, of data type `dtype` (float32 where
        integers are scaled). One for all arrays, or a dict by their names.
    window
        Lengths of a sample along the first axes (a patch), instead of a row of axis 0;
        a number is a window of rows. A dict by name gives each array its own.
    stride
        Distance of neighbouring windows; by default they touch.
    padding
        What a window that would reach beyond the array does: "drop" is left out,
        "shift" moved back inside, "fill" filled with the array's fill value.
    lead
        Added to where the window begins along axis 0; a dict by name lets a target lie
        ahead of its input.
    transform
        Called with every batch, in a thread of its own; its result is handed out.
    on_error
        What a sample does that is damaged, or that the store fails to give after
        three more tries: "raise", or "skip", which makes its batch smaller.
    return_index
        Whether batches come with the numbers of their samples: under the key "index" of
        a dict, else as ``(batch, index)``; int64, NumPy.

    Raises
    ------
    OptionError
        An argument has no possible value, or the arrays do not belong together.
    UnsupportedError
        The device or a package is missing, or elements are of a type that it has not.

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
        buffer_blocks: int = 8,
        replacement: bool = False,
        num_samples: int | None = None,
        weights: Any = None,
        rank: int | None = None,
        world_size: int | None = None,
        uneven: Uneven = "drop",
        prefetch_factor: int = 2,
        num_threads: int | None = None,
        device: str | Device | None = None,
        to: Kind | None = None,
        dtype: Any = None,
        scale: Any = None,
        offset: Any = None,
        window: Any = None,
        stride: int | tuple[int, ...] | None = None,
        padding: Padding = "drop",
        lead: Any = None,
        transform: Callable[[Any], Any] | None = None,
        on_error: OnError = "raise",
        return_index: bool = False,
    ) -> None:
        given = {k: v for k, v in locals().items() if k not in ("self", "arrays")}
        self._given = (arrays, given)
        self._settings = settings = Settings.parse(arrays, given)
        self._place = settings.place()
        self._progress = Progress()
        self._standing = Standing(0, 0)
        self._is_resumed = False
        self._pass: Pass | None = None
        tell_torch(Loader)

    @property
    def epoch(self) -> int:
        """Number of the epoch that is read, or will be next."""
        return self._standing.epoch

    @property
    def is_even(self) -> bool:
        """Whether all ranks have as many steps, whatever the number of samples."""
        settings = self._settings
        return settings.uneven != "allow" or settings.ranks[1] == 1

    def set_epoch(self, epoch: int) -> None:
        """Go to an epoch, which ends an iteration that runs through another one.

        Where it is the current one, a resumed step stays.

        Parameters
        ----------
        epoch
            From 0 on.
        """
        wanted = whole_number(epoch, "epoch", 0)
        if wanted != self._standing.epoch:
            self._stand(Standing(wanted, 0), is_resumed=False)

    def _stand(self, standing: Standing, *, is_resumed: bool) -> None:
        # An iteration that went on would move the loader to its own next step.
        self._leave()
        self._standing, self._is_resumed = standing, is_resumed

    def _leave(self, *, joins: bool = False) -> None:
        """End the iteration that runs, if one does."""
        # First, so that the iteration that it ends does not take this for its end.
        ended, self._pass = self._pass, None
        if ended is not None:
            ended.close(joins=joins)

    def __len__(self) -> int:
        """Batches of this rank in the current epoch."""
        order = self._settings.shuffling.order(self._standing.epoch)
        return self._settings.share(order.n).n_steps

    def __iter__(self) -> Iterator[Any]:
        self._leave()
        return self._iterate()

    def _iterate(self) -> Iterator[Any]:
        """Batches of an epoch, from where the loader stands."""
        settings = self._settings
        self._place.check()
        refuse_workers(device=settings.device is not None)
        begun = self._begin()
        progress, standing = self._progress, self._standing
        order = settings.shuffling.order(standing.epoch)
        share = settings.share(order.n)
        reader = Reader(
            settings.fields,
            settings.origins,
            settings.fields[0].axis("chunk"),
            self._place,
            settings.on_error,
            begun.stop,
            progress.incidents,
            self._place.n_behind if settings.n_ahead else 0,
        )
        # Batches are cut in no time: only a transform is worth a thread.
        ahead = (settings.n_ahead, settings.n_ahead if settings.transform else 0)
        progress.begin()
        try:
            place = (order, share, standing.step)
            batches = begun.batches(reader, place, self._finish, ahead, progress.waits)
            for batch, value in batches:
                self._standing = Standing(standing.epoch, batch.step + 1)
                progress.handed(
                    len(batch.samples), sum([array.nbytes for array in batch.arrays])
                )
                # Held here, they would keep their memory while the next are read.
                del batch
                yield value
                del value
                self._check_current(begun)
            self._check_current(begun)
            # Its threads only have to return: none is left for the interpreter's end,
            # which a thread in another library's code may not survive.
            begun.close(joins=True)
            self._standing = Standing(standing.epoch + 1, 0)
        finally:
            begun.close()
            progress.end()

    def _begin(self) -> Pass:
        """A new pass, the only one; from the epoch's start if nothing was resumed."""
        self._leave()
        self._pass = begun = Pass()
        if not self._is_resumed:
            self._standing = Standing(self._standing.epoch, 0)
        self._is_resumed = False
        return begun

    def _check_current(self, begun: Pass) -> None:
        if self._pass is not begun:
            raise OptionError(
                "this iteration has ended: the loader was closed, moved to another"
                " place or iterated anew",
                hint="make a second loader to iterate twice at a time",
            )

    def _finish(self, batch: Batch) -> tuple[Batch, Any]:
        """What is handed out of a batch."""
        settings = self._settings
        arrays = [settings.exported(array) for array in batch.arrays]
        index = batch.samples if settings.return_index else None
        value = settings.form.joined(arrays, index)
        if settings.transform is None:
            return batch, value
        try:
            return batch, settings.transform(value)
        except StopIteration as error:
            # To the iterators on the way it would be the end of the epoch.
            raise RuntimeError("transform= raised StopIteration") from error

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands, as small JSON; the same on all ranks.

        Counts batches that were handed out, not those read ahead.
        """
        return state_of(self._standing, self._settings.facts(self._standing.epoch))

    def load_state_dict(self, state: Any) -> None:
        """Stand where another loader stood: the next batch is the one it had next.

        Prefetching may differ, and the number of ranks too where the global batch
        (`batch_size` times `world_size`) is the same.

        Parameters
        ----------
        state
            What `state_dict` gave, of any rank.

        Raises
        ------
        OptionError
            The arrays, the seed, the shuffling or the global batch differ; which of
            them is told.
        """
        standing = parsed_standing(state)
        settings = self._settings
        refuse_other(state, settings.facts(standing.epoch))
        n_samples = settings.shuffling.order(standing.epoch).n
        if standing.step > -(-n_samples // settings.global_batch):
            raise OptionError(
                "the state counts more batches than an epoch has", got=standing.step
            )
        self._stand(standing, is_resumed=True)

    def stats(self) -> dict[str, Any]:
        """Figures since the loader was made.

        ``batches``, ``samples`` and ``bytes`` handed out, ``seconds`` they took and the
        rates; ``waiting_seconds`` that you waited for data; ``queue_occupancy``, the
        part of the queue that was full when you looked; ``stored_bytes_read``;
        ``index_requests``, shard indexes that were fetched, and ``index_cache_hits``,
        those that were still known; ``chunk_cache_hits``, inner chunks that an earlier
        read had decoded and the array's options let it keep;
        ``read_amplification``, elements decoded for each one wanted;
        ``samples_skipped`` and ``reads_retried``.
        """
        return figures(self._progress, self._settings.fields, self._settings.n_ahead)

    def close(self) -> None:
        """End the iteration and its threads."""
        self._leave(joins=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        settings = self._settings
        rank, world_size = settings.ranks
        what = f"{', '.join(settings.form.names)}: {settings.origins.n} samples"
        how = f"batches of {settings.batch_size}, rank {rank} of {world_size}"
        return f"<gpushard.Loader of {what} in {how}>"

    def __reduce__(self) -> tuple[Any, ...]:
        arrays, given = self._given
        rank, world_size = self._settings.ranks
        given = {**given, "rank": rank, "world_size": world_size}
        return _rebuilt, (arrays, given, self._standing, self._is_resumed)


def _rebuilt(
    arrays: Any, given: dict[str, Any], standing: Standing, is_resumed: bool
) -> Loader:
    loader = Loader(arrays, **given)
    loader._standing, loader._is_resumed = standing, is_resumed  # noqa: SLF001 - its own
    return loader
