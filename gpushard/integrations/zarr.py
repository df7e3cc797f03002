"""zarr's own arrays, read by gpushard: a codec pipeline for zarr-python.

All chunks of one user read come in one call and are read as one batch. What gpushard
does not read, and all that is written, goes through zarr's own pipeline.
"""

from __future__ import annotations

import asyncio
import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from zarr import config
from zarr.abc.codec import CodecPipeline
from zarr.core.array import create_codec_pipeline
from zarr.registry import register_pipeline
from zarr.storage import StorePath

from gpushard.devices.find import find_device
from gpushard.errors import (
    LimitError,
    MetadataError,
    ObjectDeletedError,
    UnsupportedError,
    naming,
)
from gpushard.integrations.zarr_batch import (
    Entry,
    extent_of,
    grown_irregularly,
    selection_of,
    split_key,
)
from gpushard.integrations.zarr_limits import (
    Prepared,
    configured_limits,
    in_config,
    options_of,
)
from gpushard.integrations.zarr_stores import inside, reader_of
from gpushard.layout import GridAxis
from gpushard.metadata import parse_array
from gpushard.options import Options
from gpushard.reading.results import ReadRequest, read_on_host
from gpushard.report import Tally
from gpushard.selecting.selection import Wanted
from gpushard.source import Source
from gpushard.stores.base import ByteRequest

if TYPE_CHECKING:
    from zarr.abc.codec import Codec
    from zarr.abc.store import Store as ZarrAbstractStore
    from zarr.core.array_spec import ArraySpec
    from zarr.core.buffer import Buffer, NDBuffer

    from gpushard.devices.base import Device
    from gpushard.layout import ArrayLayout

    BatchInfo = Iterable[tuple[Any, ArraySpec, Any, Any, bool]]

# Reads wait here while zarr's event loop serves them; the loop's own threads would be
# all taken by waiting reads, and its file stores need one for each request.
_MOST_READS = 32


class FallbackWarning(UserWarning):
    """An array, or a read of it, goes through zarr's own pipeline; says why."""


@dataclass(eq=False)
class GpushardCodecPipeline(CodecPipeline):
    """Codec pipeline that lets zarr-python read through gpushard.

    ``zarr.config.set({"codec_pipeline.path": "gpushard.GpushardCodecPipeline"})`` puts
    it to use for arrays opened from then on. Arrays that gpushard does not read fall
    back to zarr's pipeline with one warning each; with ``{"gpushard.strict": True}``
    they raise instead. Arrays beyond a limit always raise: zarr has none. The limits
    are those of `Options`, or ``{"gpushard.max_chunk_nbytes": ...}`` and its like.

    Attributes
    ----------
    metadata, store
        The array's metadata, and the store that it lies in.

    Examples
    --------
    >>> import zarr
    >>> with zarr.config.set({"codec_pipeline.path": "gpushard.GpushardCodecPipeline"}):
    ...     u = zarr.open_array("demo.zarr/u", mode="r")
    >>> u[0, :, 60:120, ::2].shape
    (3, 60, 240)
    """

    metadata: Any
    store: ZarrAbstractStore
    _zarrs: CodecPipeline = field(init=False, repr=False)
    _prepared: Prepared | None = field(init=False, repr=False, default=None)
    _warned: bool = field(init=False, repr=False, default=False)

    def __post_init__(self) -> None:
        # Ours makes zarr's of single codecs, and so this is zarr's.
        self._zarrs = create_codec_pipeline(self.metadata)

    @classmethod
    def from_array_metadata_and_store(
        cls, array_metadata: Any, store: ZarrAbstractStore
    ) -> GpushardCodecPipeline:
        """Pipeline of the array with `array_metadata` in `store`."""
        return cls(array_metadata, store)

    @classmethod
    def from_codecs(cls, codecs: Iterable[Codec]) -> Any:
        """Zarr's own pipeline of codecs that belong to no array: those of a shard."""
        from zarr.core.codec_pipeline import BatchedCodecPipeline

        return BatchedCodecPipeline.from_codecs(codecs)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return type(self), (self.metadata, self.store)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GpushardCodecPipeline):
            return NotImplemented
        return (self.metadata, self.store) == (other.metadata, other.store)

    __hash__ = None  # type: ignore[assignment]

    def evolve_from_array_spec(self, array_spec: ArraySpec) -> GpushardCodecPipeline:
        """The pipeline itself: the metadata say all that a spec could add."""
        del array_spec
        return self

    @property
    def supports_partial_decode(self) -> bool:
        """Whether zarr's pipeline of the array reads parts of chunks."""
        return self._zarrs.supports_partial_decode

    @property
    def supports_partial_encode(self) -> bool:
        """Whether zarr's pipeline of the array writes parts of chunks."""
        return self._zarrs.supports_partial_encode

    def __iter__(self) -> Iterator[Codec]:
        return iter(self._zarrs)  # type: ignore[call-overload]

    def validate(self, **array: Any) -> None:
        """Let zarr's codecs say whether they fit the array."""
        self._zarrs.validate(**array)

    def compute_encoded_size(self, byte_length: int, array_spec: ArraySpec) -> int:
        """Encoded size of a chunk of `byte_length`, as zarr's codecs tell it."""
        return self._zarrs.compute_encoded_size(byte_length, array_spec)

    async def decode(
        self, chunk_bytes_and_specs: Iterable[tuple[Buffer | None, ArraySpec]]
    ) -> Iterable[NDBuffer | None]:
        """Chunks decoded by zarr's codecs: their bytes are in memory already."""
        return await self._zarrs.decode(chunk_bytes_and_specs)

    async def encode(
        self, chunk_arrays_and_specs: Iterable[tuple[NDBuffer | None, ArraySpec]]
    ) -> Iterable[Buffer | None]:
        """Chunks encoded by zarr's codecs."""
        return await self._zarrs.encode(chunk_arrays_and_specs)

    async def write(
        self, batch_info: BatchInfo, value: NDBuffer, drop_axes: tuple[int, ...] = ()
    ) -> None:
        """Write chunks with zarr's codecs."""
        batch = list(batch_info)
        try:
            await self._zarrs.write(batch, value, drop_axes)
        finally:
            # What was known of replaced shards is void, even if only some were.
            if self._prepared is not None:
                self._prepared.sources.clear()

    async def read(
        self, batch_info: BatchInfo, out: NDBuffer, drop_axes: tuple[int, ...] = ()
    ) -> Any:
        """Read all chunks of a user's read into `out`, as one batch.

        Returns
        -------
        One ``{"status": "present" | "missing"}`` a chunk. Which are missing is looked
        up only for arrays with ``read_missing_chunks=False``; nobody else asks.

        Raises
        ------
        LimitError
            The array asks for more than the limits allow, which zarr would give it.
        UnsupportedError
            ``gpushard.strict`` is set, and gpushard does not read it.
        ObjectDeletedError
            So too, and a shard was deleted between its index and its inner chunks.
        CorruptShardError, StoreError
            As reads raise them.
        """
        batch = list(batch_info)
        if not batch:
            return ()
        loop = asyncio.get_running_loop()
        read = partial(self._read, batch, out, drop_axes, loop)
        try:
            return await loop.run_in_executor(_pool(), read)
        except LimitError as error:
            error.hint = in_config(error.hint)
            raise
        except (UnsupportedError, ObjectDeletedError) as error:
            if config.get("gpushard.strict", False):
                raise
            self._warn(error)
        return await self._zarrs.read(batch, out, drop_axes)

    def _warn(self, error: UnsupportedError | ObjectDeletedError) -> None:
        whose = "zarr's own codec pipeline"
        if isinstance(error, ObjectDeletedError):
            whose += ", which fills what is gone"
        elif self._warned:
            return
        else:
            self._warned = True
        reason = f"gpushard leaves this to {whose}: {error}"
        warnings.warn(reason, FallbackWarning, stacklevel=2)

    def _read(
        self,
        batch: Sequence[tuple[Any, ArraySpec, Any, Any, bool]],
        out: NDBuffer,
        drop_axes: tuple[int, ...],
        loop: asyncio.AbstractEventLoop,
    ) -> tuple[dict[str, str], ...]:
        """`read`, in a thread of its own."""
        source, entries = self._parsed(batch)
        array: Any = out.as_ndarray_like()
        with naming(source.store, source.layout.path):
            spec = batch[0][1]
            source = inside(source, loop, spec)
            axes = source.layout.axes
            selection = selection_of(entries, axes, tuple(array.shape), drop_axes)
            source = _grown(source, extent_of(selection))
            _check_dtype(source.layout, array.dtype)
            asks = not getattr(spec.config, "read_missing_chunks", True)
            tally = Tally() if asks else None
            _read_into(source, selection, array, tally)
            if tally is None or not tally.counts.get("n_missing_shards"):
                return ({"status": "present"},) * len(batch)
            return _statuses(source, entries)

    def _parsed(
        self, batch: Sequence[tuple[Any, ArraySpec, Any, Any, bool]]
    ) -> tuple[Source, list[Entry]]:
        """The array that a batch reads, and what it wants of its chunks."""
        prepared = self._under_the_limits()
        layout = prepared.layout
        if isinstance(layout, UnsupportedError):
            raise layout.with_traceback(None)
        keys = [_key_of(getter, self.store) for getter, *_ in batch]
        path, _ = split_key(keys[0], layout.keys, layout.ndim)
        source = prepared.sources.get(path)
        if source is None:
            store = reader_of(self.store)
            layout = replace(layout, path=path)
            source = Source.prepare(layout, store, prepared.options)
            prepared.sources[path] = source
        entries: list[Entry] = []
        for key, (_, _, chunk_selection, out_selection, *_) in zip(
            keys, batch, strict=True
        ):
            place, coordinate = split_key(key, layout.keys, layout.ndim)
            if place != path:
                raise UnsupportedError("this read is of several arrays", got=place)
            entries.append(Entry(coordinate, chunk_selection, out_selection))
        return source, entries

    def _under_the_limits(self) -> Prepared:
        """What was prepared; anew where zarr's configuration has other limits now."""
        limits = configured_limits(config.get)
        prepared = self._prepared
        if prepared is None or prepared.limits != limits:
            options = options_of(limits)
            layout = _layout_of(self.metadata, options)
            prepared = self._prepared = Prepared(limits, options, layout)
        return prepared


# zarr finds a pipeline by this name, which is the one that users write.
GpushardCodecPipeline.__module__ = "gpushard"
register_pipeline(GpushardCodecPipeline)


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_MOST_READS, thread_name_prefix="gpushard-zarr")


if hasattr(os, "register_at_fork"):  # a forked child has none of the threads
    os.register_at_fork(after_in_child=_pool.cache_clear)


def _device(ordinal: int) -> Device | None:
    return find_device(f"cuda:{ordinal}").device


def _key_of(getter: Any, store: ZarrAbstractStore) -> str:
    if type(getter) is not StorePath or getter.store is not store:
        raise UnsupportedError(
            "chunks are read through something other than the array's store",
            got=type(getter).__name__,
        )
    return getter.path


def _layout_of(metadata: Any, options: Options) -> ArrayLayout | UnsupportedError:
    """Layout of an array, its path yet unknown, or why there is none.

    Raises
    ------
    LimitError
        It asks for more than the options allow.
    """
    # Tuples become lists. Attributes can be large, and what gpushard reads from those
    # of Zarr v2 (rolled arrays) means nothing to zarr.
    document = json.loads(json.dumps({**metadata.to_dict(), "attributes": {}}))
    try:
        return parse_array(document, "", options)
    except LimitError:
        raise
    except UnsupportedError as error:
        return error
    except MetadataError as error:
        # zarr has opened the array: whether to read it after all, such as pickled
        # objects, is for zarr to say.
        return UnsupportedError(
            error.what, codec=error.codec, json_path=error.json_path, got=error.got
        )


def _grown(source: Source, needed: tuple[int, ...]) -> Source:
    """The same array, at least of shape `needed`: zarr resizes without telling."""
    layout = source.layout
    pairs = list(zip(needed, layout.axes, strict=True))
    if all(n <= axis.extent for n, axis in pairs):
        return source
    if any(n > axis.extent and axis.boundaries is not None for n, axis in pairs):
        raise grown_irregularly()
    axes = tuple(GridAxis(n, a.cell) if n > a.extent else a for n, a in pairs)
    shape = tuple(axis.extent for axis in axes)
    return replace(source, layout=replace(layout, shape=shape, axes=axes))


def _check_dtype(layout: ArrayLayout, dtype: np.dtype[Any]) -> None:
    """Refuse an output of which zarr makes something other than a copy: one field."""
    if dtype != layout.dtype and dtype.newbyteorder("=") != layout.dtype:
        raise UnsupportedError(
            "the output is of another data type than the array",
            expected=layout.dtype,
            got=dtype,
        )


def _read_into(
    source: Source, selection: Wanted, array: Any, tally: Tally | None
) -> None:
    request = ReadRequest([selection], [array], source.layout.dtype, tally=tally)
    if not hasattr(array, "__cuda_array_interface__"):
        read_on_host(source, request)
        return
    from gpushard.devices.results import read_on_device

    device = _device(array.device.id)
    if device is not None:
        read_on_device(source, request, device)


def _statuses(source: Source, entries: Sequence[Entry]) -> tuple[dict[str, str], ...]:
    """Whether each chunk is stored: asked for after the read."""
    requests = [ByteRequest(source.key(entry.coordinate), 0, 1) for entry in entries]
    answers = source.store.read(requests)
    return tuple(
        {"status": "missing" if answer is None else "present"} for answer in answers
    )
