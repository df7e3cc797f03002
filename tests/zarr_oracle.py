"""zarr-python as the oracle: it writes an array of a document and reads it back."""

from __future__ import annotations

import json
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import MemoryStore, WrapperStore, ZipStore

try:
    # zarr 3.2 and newer, behind a switch.
    from zarr.core.metadata.v3 import RectilinearChunkGridMetadata
except ImportError:
    RectilinearChunkGridMetadata = None

HAS_RECTILINEAR = RectilinearChunkGridMetadata is not None
# A chunk needs no task of an event loop for itself, where zarr can do without.
WITHOUT_TASKS = (
    {
        "codec_pipeline.path": "zarr.core.codec_pipeline.FusedCodecPipeline",
        "codec_pipeline.max_workers": 1,
    }
    if hasattr(zarr.core.codec_pipeline, "FusedCodecPipeline")
    else {}
)

Json = dict[str, Any]
StoreKind = Literal["memory", "local", "remote", "zip"]


@contextmanager
def quiet_zarr() -> Iterator[None]:
    """Let zarr-python do what it warns about: young data types, numcodecs' codecs."""
    switches = {"array.rectilinear_chunks": True} if HAS_RECTILINEAR else {}
    with warnings.catch_warnings(), zarr.config.set(switches):
        warnings.simplefilter("ignore")
        yield


def held(objects: dict[str, bytes]) -> MemoryStore:
    """zarr's memory store of `objects`."""
    buffer = default_buffer_prototype().buffer
    return MemoryStore({key: buffer.from_bytes(data) for key, data in objects.items()})


@dataclass(frozen=True)
class StoredArray:
    """An array as it lies in a store, and its elements as zarr-python reads them."""

    objects: dict[str, bytes]
    full: NDArray[Any]

    @property
    def document(self) -> Json:
        return json.loads(self.objects["zarr.json"])

    def __repr__(self) -> str:
        sizes = {key: len(data) for key, data in self.objects.items()}
        return f"StoredArray({json.dumps(self.document)}, {sizes})"

    def placed(self, kind: StoreKind, directory: Path) -> Any:
        """Put the objects into a store; returns what names it."""
        if kind == "memory":
            return held(self.objects)
        if kind == "remote":
            # A wrapper is of a kind unknown to gpushard, which takes it for a network.
            return WrapperStore(held(self.objects))
        place = directory / f"{len(list(directory.iterdir()))}"
        if kind == "zip":
            place = place.with_suffix(".zip")
            with zipfile.ZipFile(place, "w") as archive:
                for key, data in self.objects.items():
                    archive.writestr(key, data)
            return ZipStore(place, mode="r")
        for key, data in self.objects.items():
            (place / key).parent.mkdir(parents=True, exist_ok=True)
            (place / key).write_bytes(data)
        return place


def write(document: Json, regions: list[tuple[Any, NDArray[Any]]]) -> StoredArray:
    """Have zarr-python write values into regions of the array of `document`."""
    objects: dict[str, Any] = {}
    text = json.dumps(document).encode()
    objects["zarr.json"] = default_buffer_prototype().buffer.from_bytes(text)
    with quiet_zarr():
        with zarr.config.set(WITHOUT_TASKS):
            array = zarr.open_array(MemoryStore(objects), mode="r+")
            for region, values in regions:
                array[region] = values
        array = zarr.open_array(MemoryStore(objects), mode="r")
        # A string without axes comes out as Python's.
        full = np.asarray(array[...], array.dtype)
    stored = {key: buffer.to_bytes() for key, buffer in objects.items()}
    return StoredArray(stored, native(full))


def native(array: NDArray[Any]) -> NDArray[Any]:
    """Same values in native byte order, as gpushard gives them."""
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def assert_same_bits(got: Any, want: Any) -> None:
    """Same shape, data type and bytes: NaN payloads and the sign of zero included."""
    if isinstance(want, np.str_ | np.bytes_) or isinstance(got, np.str_ | np.bytes_):
        # Scalars do not tell the length of their type.
        assert np.shape(got) == np.shape(want) == ()
        assert got == want
        return
    got, want = np.asarray(got), native(np.asarray(want))
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    if want.dtype.hasobject or want.dtype.kind == "T":
        assert np.array_equal(got, want)
    elif got.tobytes() != want.tobytes():
        np.testing.assert_array_equal(got, want)
        raise AssertionError("equal values, but other bits")
