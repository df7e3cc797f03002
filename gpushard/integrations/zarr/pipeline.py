"""zarr's own arrays, read by gpushard: a codec pipeline for zarr-python.

All chunks of one read by the user come in one call and are read as one batch. zarr's
own pipeline reads what gpushard does not read, and does all writing.
"""

from __future__ import annotations

import asyncio
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from zarr import config
from zarr.abc.codec import CodecPipeline
from zarr.core.array import create_codec_pipeline
from zarr.registry import register_pipeline

from gpushard.errors import LimitError, ObjectDeletedError, UnsupportedError
from gpushard.integrations.zarr.arrays import PipelineArray
from gpushard.integrations.zarr.reading import read_batch
from gpushard.options import limit_in_words
from gpushard.threads.stop_flag import StopFlag, call_for

if TYPE_CHECKING:
    from zarr.abc.codec import Codec
    from zarr.abc.store import Store as ZarrAbstractStore
    from zarr.core.array_spec import ArraySpec
    from zarr.core.buffer import Buffer, NDBuffer

    BatchInfo = Iterable[tuple[Any, ArraySpec, Any, Any, bool]]

# Reads wait in these threads while zarr's event loop serves them. They would occupy all
# of the loop's own threads, of which zarr's file stores need one for each request.
_MOST_READS = 32
# What to do about a limit, in the words of zarr's configuration.
_RAISE_IT = 'raise it: zarr.config.set({{"gpushard.{name}": ...}})'


class FallbackWarning(UserWarning):
    """Warns that zarr's own pipeline reads an array, or does one read, and says why."""


@dataclass(eq=False)
class GpushardCodecPipeline(CodecPipeline):
    """Codec pipeline that lets zarr-python read through gpushard.

    After ``zarr.config.set({"codec_pipeline.path": "gpushard.GpushardCodecPipeline"})``
    zarr uses it for all arrays that it opens. Arrays that gpushard does not read fall
    back to zarr's pipeline, with one warning each; with ``{"gpushard.strict": True}``
    they raise instead. Arrays that exceed a limit always raise, because zarr has no
    limits. The limits are those of `Options`; settings like
    ``{"gpushard.max_chunk_nbytes": ...}`` change them.

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
    _array: PipelineArray = field(init=False, repr=False)
    _warned: bool = field(init=False, repr=False, default=False)

    def __post_init__(self) -> None:
        # `from_codecs` gives zarr's pipeline, and so does this.
        self._zarrs = create_codec_pipeline(self.metadata)
        self._array = PipelineArray(self.metadata, self.store)

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
        """The pipeline itself, because a spec says nothing that the metadata do not."""
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
            # Even a write that failed may have replaced some shards.
            self._array.forget()

    async def read(
        self, batch_info: BatchInfo, out: NDBuffer, drop_axes: tuple[int, ...] = ()
    ) -> Any:
        """Read all chunks of a user's read into `out`, as one batch.

        Returns
        -------
        One ``{"status": "present" | "missing"}`` for each chunk. gpushard finds out
        which are missing only for arrays with ``read_missing_chunks=False``, because
        zarr does not ask for others.

        Raises
        ------
        LimitError
            The array asks for more than the limits allow.
        UnsupportedError
            gpushard does not read the array, and ``gpushard.strict`` is set.
        ObjectDeletedError
            A shard was deleted after its index was read and before its inner chunks
            were, and ``gpushard.strict`` is set.
        CorruptShardError, StoreError
            As for `Array.read`.
        """
        batch = list(batch_info)
        if not batch:
            return ()
        loop = asyncio.get_running_loop()
        read = partial(read_batch, self._array, batch, out, drop_axes, loop)
        stop = StopFlag()
        try:
            return await loop.run_in_executor(_pool(), call_for, stop, read)
        except asyncio.CancelledError:
            stop.set()  # else its requests would keep the thread from other reads
            raise
        except LimitError as error:
            error.hint = limit_in_words(error.hint, _RAISE_IT)
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


# zarr finds a pipeline by this name, which is the one that users write.
GpushardCodecPipeline.__module__ = "gpushard"
register_pipeline(GpushardCodecPipeline)


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_MOST_READS, thread_name_prefix="gpushard-zarr")


# A forked child has none of the threads.
os.register_at_fork(after_in_child=_pool.cache_clear)
