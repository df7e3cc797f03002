"""Codecs of a shard index -> the size of the index, whatever its entries say."""

from __future__ import annotations

from gpushard.errors import LimitError, MetadataError
from gpushard.layout import (
    ENTRY_NBYTES,
    INDEX_ELEMENTS,
    CodecChain,
    CodecSpec,
    IndexSize,
)
from gpushard.options import Options
from gpushard.pipeline import HostPipeline

_EXPECTED = "index codecs of fixed size, such as bytes and crc32c"


def index_size(chain: CodecChain, ndim: int, json_path: str) -> IndexSize:
    """Size of an index encoded by `chain`, for shards with `ndim` axes.

    If the size depends on the entries, or codecs do not fit them, that is a
    `MetadataError`.
    """
    # The index is an array with one axis more, of length 2 (sharding codec 1.0, Binary
    # shard format).
    around = (1,) * (ndim - 1)
    counts = (1, 2, 64)
    shapes = [(n, *around, 2) if ndim else (2,) for n in counts]
    pipeline = HostPipeline.compile(chain, INDEX_ELEMENTS, chunk_shape=shapes[0])
    sizes = [pipeline.payload_nbytes(shape) for shape in shapes]
    one, two, many = sizes
    if one is None or two is None or many is None:
        raise _variable(chain, pipeline, json_path)
    # Without axes there is only one entry, so its bytes cannot be told from the others.
    entry_nbytes = two - one if ndim else ENTRY_NBYTES
    size = IndexSize(entry_nbytes, one - entry_nbytes)
    if ndim and size.of(counts[-1]) != many:
        raise _variable(chain, pipeline, json_path)
    return size


def check_index_nbytes(
    size: IndexSize, n_entries: int, json_path: str, options: Options
) -> None:
    """Refuse shards whose index exceeds the limit (`LimitError`)."""
    # A codec may have made the entries smaller.
    index_nbytes = max(size.of(n_entries), ENTRY_NBYTES * n_entries)
    if index_nbytes > options.max_index_nbytes:
        raise LimitError(
            "the shard index is too large",
            json_path=json_path,
            expected=f"at most {options.max_index_nbytes} bytes",
            got=f"{index_nbytes} bytes for {n_entries} inner chunks",
            hint="raise options.max_index_nbytes",
        )


def _variable(
    chain: CodecChain, pipeline: HostPipeline, json_path: str
) -> MetadataError:
    culprits: list[CodecSpec] = [
        spec
        for spec, codec in zip(chain.bytes_bytes, pipeline.bytes_codecs, strict=True)
        if codec.encoded_nbytes(16) is None
    ]
    if not culprits:
        return MetadataError(
            "the index codecs do not give a fixed number of bytes for each entry",
            json_path=json_path,
            expected=_EXPECTED,
            got=[spec.name for spec in chain.specs],
        )
    return variable_size_error(culprits[0])


def variable_size_error(spec: CodecSpec) -> MetadataError:
    """Error for an index codec whose encoded size depends on what it encodes."""
    return MetadataError(
        f"codec {spec.name!r} has no fixed encoded size",
        json_path=spec.json_path,
        expected=_EXPECTED,
        got=spec.name,
    )
