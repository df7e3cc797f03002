"""Which library decodes which codec, on a GPU and on the host of this machine."""

from __future__ import annotations

import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from gpushard.devices.base import Device
from gpushard.errors import GpushardError
from gpushard.formats.codec_specs import KNOWN, SHARDING, Kind, kind_of
from gpushard.metadata import parse_array
from gpushard.options import DEFAULT
from gpushard.report import CodecPlacement, Tally
from gpushard.source import Source
from gpushard.stores.local.store import LocalStore

_BLOSC = ("blosc", "numcodecs.blosc")
_COMPRESSORS = ("lz4", "lz4hc", "zstd", "zlib", "snappy", "blosclz")
_BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
_CHUNK_LENGTH = 64
# Configurations that codecs need, and data types that they take; the defaults are none,
# and int32.
_CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "cast_value": {"data_type": "int16"},
    "transpose": {"order": [0]},
    "numcodecs.astype": {"encode_dtype": "<i2", "decode_dtype": "<i4"},
    "numcodecs.bitround": {"keepbits": 3},
    "numcodecs.delta": {"dtype": "<i4"},
    "numcodecs.fixedscaleoffset": {
        "offset": 0,
        "scale": 10,
        "dtype": "<f8",
        "astype": "<i2",
    },
    "numcodecs.quantize": {"digits": 2, "dtype": "<f8"},
}
_DATA_TYPES = {
    "cast_value": ("float32", 0.0),
    "scale_offset": ("float32", 0.0),
    "numcodecs.bitround": ("float32", 0.0),
    "numcodecs.fixedscaleoffset": ("float64", 0.0),
    "numcodecs.packbits": ("bool", False),
    "numcodecs.quantize": ("float64", 0.0),
    "numcodecs.zfpy": ("float64", 0.0),
    "vlen-utf8": ("string", ""),
    "vlen-bytes": ("variable_length_bytes", ""),
}


def placed_codecs(source: Source, device: Device | None) -> tuple[CodecPlacement, ...]:
    """Where the codecs of an array are decoded, in decoding order.

    By the host, if `device` is None; else by a read that is large enough for it.
    """
    on_host = source.pipeline.placements()
    if device is None:
        return on_host
    # Imported here, because a machine without a GPU has no use for them.
    from gpushard.device_reading.choice import placements
    from gpushard.devices.placement import has_decoder

    for spec in source.layout.chain.bytes_bytes:
        if not has_decoder(spec):
            why = f"no device decodes {spec.configuration['cname']}"
            return tuple(replace(placed, why=why) for placed in on_host)
    return placements(source, device, Tally(is_wanted=False))


def codec_table(nvcomp: str | None) -> list[dict[str, Any]]:
    """Codecs by name: what decodes them on a GPU and on the CPU; None if nothing does.

    `nvcomp` is the name and version of the installed nvCOMP.
    """
    label = nvcomp or "nvCOMP, not installed"
    gpu: Any = SimpleNamespace(
        label="the GPU", decoder=SimpleNamespace(label=label)
    )  # placements look at nothing else
    rows: list[dict[str, Any]] = []
    for name in KNOWN:
        if name in _BLOSC:
            rows += [
                _codec_row(name, {"cname": compressor}, f"{name} ({compressor})", gpu)
                for compressor in _COMPRESSORS
            ]
        elif name != SHARDING:  # `info` reports it level by level
            rows.append(_codec_row(name, _CONFIGURATIONS.get(name, {}), name, gpu))
    return rows


def _codec_row(
    name: str, configuration: dict[str, Any], label: str, gpu: Any
) -> dict[str, Any]:
    try:
        layout = parse_array(_document(name, configuration), "")
        source = Source.prepare(layout, LocalStore(os.curdir), DEFAULT)
        (on_gpu,) = (p for p in placed_codecs(source, gpu) if p.codec == name)
        (on_cpu,) = (p for p in source.pipeline.placements() if p.codec == name)
    except (GpushardError, ImportError) as error:
        return {"codec": label, "gpu": None, "cpu": None, "why": _obstacle(error)}
    is_on_gpu = on_gpu.where != "host"
    return {
        "codec": label,
        "gpu": on_gpu.library if is_on_gpu else None,
        "cpu": on_cpu.library,
        "why": "" if is_on_gpu else on_gpu.why,
    }


def _obstacle(error: GpushardError | ImportError) -> str:
    """What keeps a codec from being decoded, and what to do."""
    if isinstance(error, GpushardError):
        return "; ".join(filter(None, (error.what, error.hint)))
    return str(error)


def _document(name: str, configuration: dict[str, Any]) -> dict[str, Any]:
    """Document of an array whose codec chain contains the codec."""
    codec = {"name": name, "configuration": configuration}
    kind = kind_of(name, "")
    codecs = {
        Kind.ARRAY_ARRAY: [codec, _BYTES],
        Kind.ARRAY_BYTES: [_BYTES if name == "bytes" else codec],
        Kind.BYTES_BYTES: [_BYTES, codec],
    }[kind]
    data_type, fill_value = _DATA_TYPES.get(name, ("int32", 0))
    shape = {"chunk_shape": [_CHUNK_LENGTH]}
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [_CHUNK_LENGTH],
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": shape},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": fill_value,
        "codecs": codecs,
    }
