"""Inner chunks -> bytes, by compressors' own functions or zarr's codec objects."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from zarr.core.buffer import cpu
from zarr.core.sync import sync

from gpushard.codecs.bytes import stored_elements
from gpushard.codecs.compressing import compressor, threads_for
from gpushard.codecs.encoded import Bytes, EncodedArrays, Ints
from gpushard.codecs.small_floats import as_bits, is_small_float, refuse_computing
from gpushard.codecs.zarr_objects import (
    all_settings,
    codec_object,
    elements_spec,
    encoded_spec,
    fit,
)
from gpushard.errors import UnsupportedError
from gpushard.layout import CodecChain, CodecSpec, Elements
from gpushard.threads.workers import run_side_by_side
from gpushard.zarr_thread import running_loop

Batch = NDArray[Any] | Sequence[NDArray[Any]] | EncodedArrays
"""Arrays of one shape: along the first axis of one array, in a list, or encoded."""


class _Step(NamedTuple):
    """One codec, fitted to the arrays that it gets.

    Attributes
    ----------
    codec
        zarr's object; None for structs, which become their bytes.
    array
        What it gets.
    own
        Function that encodes without zarr's object; None if there is none.
    takes_bytes
        Whether it gets bytes, not elements.
    settings
        All settings of a codec that gets bytes.
    """

    spec: CodecSpec
    codec: Any
    array: Any
    own: Callable[[Any, int], EncodedArrays] | None
    takes_bytes: bool
    settings: Mapping[str, Any]

    def ready(self) -> _Step:
        """The same with its compressor, which may hold memory for each thread."""
        if not self.takes_bytes:
            return self
        return self._replace(own=compressor(self.spec, self.settings))

    @property
    def runs_here(self) -> bool:
        """Whether zarr's object can encode in any thread, without an event loop.

        From zarr 3.2 on most can (`zarr.abc.codec.SupportsSyncCodec`).
        """
        is_sync = hasattr(self.codec, "_encode_sync")
        return is_sync and getattr(self.codec, "_sync_capable", True)

    def encode(
        self, batch: Batch, n_threads: int
    ) -> EncodedArrays | list[NDArray[Any] | None]:
        """Each array encoded; None if nothing is stored."""
        if self.own is None:
            return self.by_zarr(_items(batch), n_threads)
        with self._told():
            return self.own(_encoded(batch) if self.takes_bytes else batch, n_threads)

    def by_zarr(
        self, items: Sequence[NDArray[Any]], n_threads: int
    ) -> list[NDArray[Any] | None]:
        """The same, with zarr's object."""
        loop = None if self.runs_here else running_loop()
        with self._told():
            if self.runs_here:
                n_threads = threads_for(items[0].nbytes, n_threads)
                return run_side_by_side(self._encoded_here, items, n_threads)
            pairs = [(self._buffer(item), self.array) for item in items]
            encoded = sync(self.codec.encode(pairs), loop)
            return [None if one is None else one.as_numpy_array() for one in encoded]

    @contextmanager
    def _told(self) -> Generator[None]:
        """Errors say which codec refuses the values."""
        try:
            yield
        except MemoryError:
            raise  # this error is not about the values
        except Exception as error:
            raise UnsupportedError(
                f"the values cannot be encoded, the codec says: {error}",
                codec=self.spec.name,
                json_path=self.spec.json_path,
                hint="check that the values fit the array's codecs",
            ) from error

    def _encoded_here(self, item: NDArray[Any]) -> NDArray[Any] | None:
        encoded = self.codec._encode_sync(self._buffer(item), self.array)  # noqa: SLF001 - the protocol names it so
        return None if encoded is None else encoded.as_numpy_array()

    def _buffer(self, item: Any) -> Any:
        if self.takes_bytes:
            data: Any = _as_bytes(item)  # zarr's ArrayLike is narrower
            return cpu.Buffer.from_array_like(data)
        # numcodecs assumes C order without looking at the layout, and so do the codecs
        # of zarr that call it.
        if self.spec.name.startswith(("numcodecs.", "vlen-")):
            item = np.asarray(item, order="C")
        return cpu.NDBuffer.from_numpy_array(item)


_Fitted = tuple[tuple[int, ...], list[_Step]]


class ChainEncoder:
    """A codec chain, ready to encode arrays.

    The encoder may be called from several threads at once. Structs become bytes here,
    because zarr does not know all structs of Zarr v2, and does not give each field its
    byte order. Elements that only ml_dtypes knows become integers of the same bits.
    """

    def __init__(self, chain: CodecChain, elements: Elements) -> None:
        self._specs = (*chain.array_array, chain.array_bytes, *chain.bytes_bytes)
        self._n_array_array = len(chain.array_array)
        self._struct: np.dtype[Any] | None = None
        self._bits: np.dtype[Any] | None = None
        if is_small_float(elements.dtype):
            refuse_computing(chain, elements.dtype)
            elements = as_bits(elements)
            self._bits = elements.dtype
        if elements.dtype.names is not None and chain.array_bytes.name == "bytes":
            self._struct = elements.dtype
            elements = replace(elements, data_type_json=_opaque(elements.dtype))
        self._codecs = tuple(
            None
            if self._struct is not None and spec is chain.array_bytes
            else codec_object(spec)
            for spec in self._specs
        )
        self._array = elements_spec(chain.array_bytes, elements)
        # For the last shape: without contexts of compressors, and with them.
        self._fitted: list[_Fitted] = [((), [])]
        self._steps_held: _Fitted = ((), [])

    def anew(self) -> ChainEncoder:
        """The same encoder, without the contexts that compressors of this one hold.

        They may take as much memory as an inner chunk, or more, for each thread. What
        zarr's objects said about shapes is shared.
        """
        made = copy(self)
        made._steps_held = (), []  # noqa: SLF001 - it is of this class
        return made

    def encode(
        self, arrays: NDArray[Any], n_threads: int = 1
    ) -> tuple[Ints, EncodedArrays]:
        """Which arrays, along the first axis of one array, are stored, and as what.

        Parameters
        ----------
        arrays
            At least one array. If nobody else holds them, their memory is free as soon
            as a codec has made others of them.
        n_threads
            Threads that encode, where the codecs need no event loop. Otherwise zarr
            encodes the arrays in threads of its own.

        Returns
        -------
        Numbers of the stored arrays, int64, shape (n_stored,), and their bytes, which
        may be views on the arrays.

        Raises
        ------
        UnsupportedError
            A codec cannot encode these values.
        """
        kept, batch = np.arange(len(arrays), dtype=np.int64), cast("Batch", arrays)
        steps = self._steps(arrays.shape[1:])
        if self._bits is not None:
            batch = arrays.view(self._bits)
        del arrays
        for step in steps:
            found = step.encode(batch, n_threads)
            if isinstance(found, EncodedArrays):
                batch = found
                continue
            kept = kept[[item is not None for item in found]]
            batch = [item for item in found if item is not None]
            if not batch:
                break
        return kept, _encoded(batch)

    def encode_one(self, array: NDArray[Any]) -> Bytes | None:
        """Bytes of an array; None if a codec stores nothing."""
        _, encoded = self.encode(array[np.newaxis])
        return next(iter(encoded.items()), None)

    def encode_index(self, entries: NDArray[np.uint64]) -> Bytes:
        """Bytes of a shard index; its numbers are always stored."""
        encoded = self.encode_one(entries)
        if encoded is None:
            raise AssertionError("an index of no bytes")
        return encoded

    def _steps(self, shape: tuple[int, ...]) -> list[_Step]:
        """The codecs, fitted to arrays of a shape: as a rule, of the last one."""
        held_shape, steps = self._steps_held
        if steps and held_shape == shape:
            return steps
        fitted_shape, fitted = self._fitted[0]
        if not fitted or fitted_shape != shape:
            fitted = self._fit(shape)
            self._fitted[0] = shape, fitted
        steps = [step.ready() for step in fitted]
        self._steps_held = shape, steps
        return steps

    def _fit(self, shape: tuple[int, ...]) -> list[_Step]:
        steps, array = list[_Step](), replace(self._array, shape=shape)
        for i, (spec, unfitted) in enumerate(
            zip(self._specs, self._codecs, strict=True)
        ):
            codec: Any = None if unfitted is None else fit(spec, unfitted, array)
            own, settings = None, dict[str, Any]()
            if i > self._n_array_array:
                settings = all_settings(spec, codec)
            elif i == self._n_array_array and spec.name == "bytes":
                own = _to_bytes(spec, self._struct or _native(array.dtype))
            takes_bytes = i > self._n_array_array
            steps.append(_Step(spec, codec, array, own, takes_bytes, settings))
            if codec is not None:
                array = encoded_spec(spec, codec, array)
        return steps


def encode_bytes(specs: Sequence[CodecSpec], data: Bytes) -> Bytes:
    """`data` through bytes-to-bytes codecs, in encoding order."""
    byte = Elements(np.dtype(np.uint8), "uint8", 0, np.zeros((), np.uint8))
    encoded: NDArray[Any] = data
    for spec in specs:
        array = replace(elements_spec(spec, byte), shape=(1,))
        codec = fit(spec, codec_object(spec), array)
        (found,) = _Step(spec, codec, array, None, True, {}).by_zarr([encoded], 1)
        if found is None:
            raise AssertionError("an object of no bytes")  # bytes are always stored
        encoded = found
    return _as_bytes(encoded)


def _items(batch: Batch) -> list[NDArray[Any]]:
    if isinstance(batch, np.ndarray):
        return [batch[i, ...] for i in range(len(batch))]
    return batch.items() if isinstance(batch, EncodedArrays) else [*batch]


def _encoded(batch: Batch) -> EncodedArrays:
    """Columns of arrays that became bytes."""
    if isinstance(batch, EncodedArrays):
        return batch
    return EncodedArrays.of([_as_bytes(item) for item in _items(batch)])


def _as_bytes(array: NDArray[Any]) -> Bytes:
    """The elements of an array one after the other, in C order."""
    flat: NDArray[Any] = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8)


def _opaque(dtype: np.dtype[Any]) -> Any:
    """Plain data type of the same size, which hides a struct from codecs."""
    configuration = {"length_bytes": dtype.itemsize}
    return {"name": "raw_bytes", "configuration": configuration}


def _native(dtype: Any) -> np.dtype[Any]:
    """NumPy's data type; zarr 3.1 has that itself behind numcodecs' filters."""
    return dtype if isinstance(dtype, np.dtype) else dtype.to_native_dtype()


def _to_bytes(
    spec: CodecSpec, dtype: np.dtype[Any]
) -> Callable[[NDArray[Any] | Sequence[NDArray[Any]], int], EncodedArrays] | None:
    """The codec "bytes" for elements of `dtype`; None if NumPy has no such cast."""
    stored = stored_elements(spec, dtype)
    if not stored.is_castable or not dtype.itemsize:
        return None

    def encode(batch: NDArray[Any] | Sequence[NDArray[Any]], _: int) -> EncodedArrays:
        dtype = stored.view_dtype
        if isinstance(batch, np.ndarray):
            rows = _as_bytes(np.ascontiguousarray(batch, dtype))
            return EncodedArrays.of_rows(rows.reshape(len(batch), -1))
        return EncodedArrays.of(
            [_as_bytes(np.ascontiguousarray(a, dtype)) for a in batch]
        )

    return encode
