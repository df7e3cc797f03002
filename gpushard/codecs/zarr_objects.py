"""zarr's own codec objects: made from the metadata, and fitted to an array."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numcodecs
from numcodecs.errors import UnknownCodecError
from zarr.core.array_spec import ArrayConfig, ArraySpec
from zarr.core.buffer import cpu
from zarr.core.dtype import get_data_type_from_json
from zarr.registry import get_codec_class

from gpushard.codecs.base import REGISTERED
from gpushard.codecs.bytes import UNSIZED_KINDS
from gpushard.errors import MetadataError, UnsupportedError
from gpushard.layout import CodecSpec, Elements
from gpushard.quiet import without_warnings

_OF_NUMCODECS = "numcodecs."
_TRIED_NBYTES = 8
# What pip installs for codecs that are known without the package that they need.
_INSTALLED_BY = {
    "cast_value": "zarr[cast-value-rs]",
    "numcodecs.crc32c": "numcodecs[crc32c]",
    "numcodecs.pcodec": "numcodecs[pcodec]",
    "numcodecs.zfpy": "numcodecs[zfpy]",
}
# The class of regular chunk grids, in newer and in older releases of zarr.
_CHUNK_GRIDS = (
    ("zarr.core.metadata.v3", "RegularChunkGridMetadata"),
    ("zarr.core.chunk_grids", "RegularChunkGrid"),
)


def elements_spec(spec: CodecSpec, elements: Elements) -> ArraySpec:
    """Description of an array for zarr, with an arbitrary shape."""
    try:
        data_type = get_data_type_from_json(elements.data_type_json, zarr_format=3)
        if elements.dtype.kind in UNSIZED_KINDS:  # zarr has its own scalars for these
            fill_value: Any = data_type.from_json_scalar(
                elements.fill_value_json, zarr_format=3
            )
        else:
            fill_value = elements.fill_value[()]  # keeps the bits of a NaN
    except Exception as error:
        raise UnsupportedError(
            f"zarr does not know the data type {elements.data_type_json!r}",
            codec=spec.name,
            json_path=spec.json_path,
        ) from error
    return array_spec((), data_type, fill_value)


def array_spec(shape: tuple[int, ...], data_type: Any, fill_value: Any) -> ArraySpec:
    """Description for zarr of an array of `shape`."""
    return ArraySpec(
        shape=shape,
        dtype=data_type,
        fill_value=fill_value,
        config=ArrayConfig.from_dict({}),
        prototype=cpu.buffer_prototype,
    )


def codec_object(spec: CodecSpec) -> Any:
    """Zarr's object for the codec that `spec` names, not yet fitted to an array."""
    if spec.name.startswith(REGISTERED):
        raise UnsupportedError(
            "the codec is one of Zarr v2 that gpushard only decodes",
            codec=spec.name,
            json_path=spec.json_path,
            hint="write to an array with other codecs",
        )
    try:
        codec_class = get_codec_class(spec.name)
    except Exception as error:
        raise UnsupportedError(
            f"the installed zarr knows no codec {spec.name!r}",
            json_path=spec.json_path,
            hint="install a newer zarr, or the package that provides the codec",
        ) from error
    document: Any = {"name": spec.name, "configuration": dict(spec.configuration)}
    # Some zarr releases warn that numcodecs' codecs are not in the specification; a
    # reader cannot change that.
    with _configuring(spec), without_warnings():
        return codec_class.from_dict(document)


def fit(spec: CodecSpec, codec: Any, array: ArraySpec) -> Any:
    """The codec, fitted to the array that it gets."""
    with _configuring(spec):
        fitted = codec.evolve_from_array_spec(array)
        if spec.name.startswith(_OF_NUMCODECS):
            # zarr makes numcodecs' object only when it decodes for the first time.
            numcodecs.get_codec(dict(fitted.codec_config))
        return fitted


def all_settings(spec: CodecSpec, codec: Any) -> Mapping[str, Any]:
    """Settings of a fitted codec, also those that the metadata leave open."""
    if spec.name.startswith(_OF_NUMCODECS):
        return numcodecs.get_codec(dict(codec.codec_config)).get_config()
    return codec.to_dict().get("configuration", {})


def encoded_spec(spec: CodecSpec, codec: Any, array: ArraySpec) -> ArraySpec:
    """Description of the codec's output for such an array."""
    with _configuring(spec):
        return codec.resolve_metadata(array)


def validate(spec: CodecSpec, codec: Any, array: ArraySpec) -> None:
    """Let zarr check that a codec fits the array that it gets."""
    grid = _chunk_grid()(chunk_shape=array.shape)
    with _configuring(spec):
        codec.validate(shape=array.shape, dtype=array.dtype, chunk_grid=grid)


def _chunk_grid() -> Any:
    for module, name in _CHUNK_GRIDS:
        found = getattr(import_module(module), name, None)
        if found is not None:
            return found
    raise ImportError("this zarr has no regular chunk grids")


def try_checksum(spec: CodecSpec, codec: Any) -> None:
    """Refuse settings that numcodecs accepts and that fail only on the first bytes."""
    if not spec.name.startswith(_OF_NUMCODECS):
        return
    checksum: Any = numcodecs.get_codec(dict(codec.codec_config))
    with _configuring(spec):
        checksum.decode(checksum.encode(bytes(_TRIED_NBYTES)))


def missing_package(
    error: Exception, codec: str, json_path: str | None = None
) -> UnsupportedError:
    """Error for a codec that cannot import what it needs."""
    wanted = _INSTALLED_BY.get(codec)
    told = "" if wanted else f", {error}"
    return UnsupportedError(
        f"the codec needs a package that is not installed{told}",
        codec=codec,
        json_path=json_path,
        hint=f"run: pip install '{wanted}'" if wanted else "install that package",
    )


@contextmanager
def _configuring(spec: CodecSpec) -> Generator[None]:
    """Say of any error of the block that a codec's configuration is the cause."""
    try:
        yield
    except (ImportError, UnknownCodecError) as error:
        raise missing_package(error, spec.name, spec.json_path) from error
    except Exception as error:
        raise MetadataError(
            f"zarr refuses the configuration of the codec, {error}",
            codec=spec.name,
            json_path=f"{spec.json_path}.configuration",
        ) from error
