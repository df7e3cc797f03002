"""What people do with arrays: the doors of `memory_doors`.

A door takes what an array is opened by, and options; what it gives counts as output.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray
import zarr

import gpushard
from cuda_host.device import EmulatedDevice
from damaged_arrays import on_host, opened
from gpushard import Options
from gpushard.cli import app
from gpushard.cli.description import describe
from gpushard.cli.mapping import open_map
from gpushard.cli.reading import _shape_and_pieces
from gpushard.errors import GpushardError
from gpushard.formats.origins import new_attributes
from gpushard.inspection.verify import verify_array
from gpushard.rolling import RollingArray

STEP = 4097
# Elements that lists have, each of eight bytes.
_LISTED = 2_000_000

Door = Callable[[Any, Options], Any]
DeviceDoor = Callable[[Any, Options, EmulatedDevice], Any]


class Nothing:
    """What is no output."""

    nbytes = 0


class Results:
    """Several outputs, or one of another size."""

    def __init__(self, *nbytes: int) -> None:
        self.nbytes = sum(nbytes)


class RefusedError(GpushardError):
    """A command ended with another status than 0."""


def array_of(way: str, array: Any, options: Options) -> gpushard.Array:
    given = {"threads": options.threads, "memory_limit": options.memory_limit}
    return opened(array, way, **given, index_cache_nbytes=0)


def part(way: str, array: Any, options: Options) -> Any:
    return on_host(array_of(way, array, options)[::STEP])


def filled(array: Any, options: Options) -> Any:
    """As `part`, with the fill value where inner chunks are damaged."""
    a = array_of("plain", array, options)
    return a.read((slice(None, None, STEP),), errors="fill")


def to_device(
    array: Any,
    options: Options,
    device: EmulatedDevice,
    *,
    placement: str = "device",
    is_listed: bool = False,
) -> Any:
    """Elements here and there, or listed ones, in a device's memory."""
    more = options.but(placement=placement, small_read_chunks=0)
    a = gpushard.open_array(array, device=device, options=more)
    return a.oindex[ascending(a.shape[0])] if is_listed else a[::STEP]


def joined(array: Any, options: Options) -> Results:
    """A few MiB of each of twelve arrays in a row."""
    a = array_of("plain", array, options)
    n = a.shape[0]
    keys = [slice(k * n + n // 7, (k + 1) * n - n // 9, n // 20) for k in range(12)]
    return Results(*(r.nbytes for r in gpushard.concat([a] * 12).read_many(keys)))


@cache
def positions(n: int) -> Any:
    """Very many elements of an array of `n`, in any order; made before it is read."""
    return np.random.default_rng(n).integers(0, n, _LISTED)


@cache
def ascending(n: int) -> Any:
    """The same in order."""
    return np.sort(positions(n))


def listed(kind: str, array: Any, options: Options) -> Any:
    a = array_of("plain", array, options)
    key = positions if kind == "vindex" else ascending
    return getattr(a, kind)[key(a.shape[0])]


def verified(array: Any, options: Options) -> type[Nothing]:
    verify_array(array_of("plain", array, options).source, decodes=True)
    return Nothing


def info(array: Any, options: Options) -> type[Nothing]:
    describe(str(array), options, advise=True)
    return Nothing


def mapped(array: Any, options: Options) -> type[Nothing]:
    open_map(str(array), None, options)
    return Nothing


@contextmanager
def somewhere(array: Path) -> Iterator[Path]:
    """A new directory, which is gone afterwards."""
    with tempfile.TemporaryDirectory(dir=array.parent) as directory:
        yield Path(directory)


def converted(array: Path, options: Options) -> type[Nothing]:
    with somewhere(array) as directory:
        gpushard.convert(array, directory / "to", options=options)
    return Nothing


def command(name: str, array: Path, options: Options, flags: str = "") -> Any:
    """`gpushard NAME`, its text thrown away."""
    limit = f"memory_limit={options.memory_limit}"
    silence = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(silence, stream)
    with somewhere(array) as directory:
        places = {"convert": [str(directory / "to")], "read": []}
        more = [flag.format(directory) for flag in flags.split()]
        arguments = [name, str(array), *places.get(name, []), *more, "--limit", limit]
        status = app(arguments, standalone_mode=False)
    if status:
        raise RefusedError(f"{name} ended with the status {status}")
    if name != "read":
        return Nothing
    return Results(array_nbytes(array) if "--out" in more else piece_nbytes(array))


def piece_nbytes(array: Path) -> int:
    """Bytes that `gpushard read` holds of what it only sums up."""
    _, pieces = _shape_and_pieces(
        (...,), gpushard.open_array(array, device="cpu").source.layout
    )
    return max(piece.shape[0] for piece in pieces)


def array_nbytes(array: Path) -> int:
    """Bytes of elements that an array of one axis of bytes has."""
    return int(json.loads((array / "zarr.json").read_text())["shape"][0])


def pipeline(array: Any, options: Options) -> Any:
    with through_zarr(options):
        return zarr.open_array(array, mode="r")[::STEP]


def pipeline_write(array: Path, options: Options) -> type[Nothing]:
    """Elements written here and there to a new array like it."""
    with somewhere(array) as directory, through_zarr(options):
        shutil.copy(array / "zarr.json", directory)
        made = zarr.open_array(directory, mode="r+")
        made[:] = 7
        made[::STEP] = 8
    return Nothing


def through_zarr(options: Options) -> Any:
    limit = {"gpushard.memory_limit": options.memory_limit}
    path = "gpushard.GpushardCodecPipeline"
    more = {"array.rectilinear_chunks": True}
    return zarr.config.set({"codec_pipeline.path": path, **limit, **more})


@contextmanager
def linked(array: Path, place: Path, **changes: Any) -> Iterator[None]:
    """The same objects below `place`, of an array with other metadata."""
    document = json.loads((array / "zarr.json").read_text())
    shutil.copytree(array, place, copy_function=os.link, dirs_exist_ok=True)
    (place / "zarr.json").unlink()
    (place / "zarr.json").write_text(json.dumps(document | changes))
    yield


def dataset(array: Path, options: Options, **chunks: Any) -> Any:
    with somewhere(array) as group:
        (group / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
        with (
            linked(array, group / "u", dimension_names=["x"]),
            xarray.open_dataset(
                group, engine="gpushard", options=options, **chunks
            ) as found,
        ):
            return found["u"][::STEP].compute(**scheduled(chunks)).values


def scheduled(chunks: Any) -> dict[str, Any]:
    """One block after the other: each is a read, with a limit of its own."""
    return {"scheduler": "synchronous"} if chunks else {}


def in_blocks(array: Path, options: Options) -> Any:
    return dataset(array, options, chunks={})


def rolled(array: Path, options: Options) -> Any:
    attributes = new_attributes({}, (0,), {})
    with somewhere(array) as directory, linked(array, directory, attributes=attributes):
        return RollingArray.open(directory, device="cpu", options=options)[::STEP]


OF_STORES: dict[str, Door] = {
    "plain": partial(part, "plain"),
    "compiled": partial(part, "compiled"),
    "joined": joined,
    "filled": filled,
    "verify": verified,
}
OF_FILES: dict[str, Door] = {
    "vindex": partial(listed, "vindex"),
    "oindex": partial(listed, "oindex"),
    "info": info,
    "map": mapped,
    "convert": converted,
    "pipeline": pipeline,
    "pipeline write": pipeline_write,
    "xarray": dataset,
    "dask": in_blocks,
    "rolling": rolled,
}
TO_DEVICE: dict[str, DeviceDoor] = {
    "device": to_device,
    "device, decoded by the host": partial(to_device, placement="host"),
    "device, listed": partial(to_device, is_listed=True),
}
COMMANDS: dict[str, Door] = {
    "map command": partial(command, "map", flags="--json"),
    "verify command": partial(command, "verify", flags="--decode --json"),
    "read command": partial(command, "read"),
    "read command, file": partial(command, "read", flags="--out {}/out.npy"),
    "convert command": partial(command, "convert"),
}
