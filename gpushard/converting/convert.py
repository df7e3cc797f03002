"""`convert`: any array that is read, or a group of them -> sharded Zarr v3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from gpushard.arguments import instance
from gpushard.array import Array
from gpushard.converting.conversion import Conversion, ConversionReport
from gpushard.converting.kept import TargetArguments
from gpushard.converting.nodes import nodes_at, refuse_overlap
from gpushard.converting.progress import Progress
from gpushard.errors import OptionError, naming
from gpushard.hierarchies.documents import join
from gpushard.options import DEFAULT, Options, ReadOptions
from gpushard.stores.resolve import resolve
from gpushard.writing.create import open_or_make

if TYPE_CHECKING:
    from gpushard.array import Target


class ConvertArguments(TargetArguments, total=False):
    """How an array is converted; all of it may be left out.

    Attributes
    ----------
    shards, chunks, filters, serializer, compressors, index_location
        As of `TargetArguments`.
    memory_limit, num_threads
        Instead of those of the options. Elements and encoded shards in flight stay
        under the limit.
    """

    memory_limit: int | None
    num_threads: int | None


def convert(  # noqa: PLR0913 - four by position, the rest by name
    src: Target | Array,
    dst: Target,
    src_path: str = "",
    dst_path: str = "",
    *,
    overwrite: bool = False,
    resume: bool = True,
    verify: bool = False,
    progress: Progress = None,
    storage_options: Mapping[str, Any] | None = None,
    dst_storage_options: Mapping[str, Any] | None = None,
    options: Options = DEFAULT,
    **target: Unpack[ConvertArguments],
) -> ConversionReport:
    """Sharded array of Zarr v3 at `dst`, with the elements of the array at `src`.

    Attributes, names of dimensions and the fill value are carried over. Of a group, all
    arrays at and below it are converted. What was interrupted goes on where it was when
    it is called again: finished shards are not written again. docs/convert.md has more.

    Parameters
    ----------
    src, src_path, dst, dst_path
        What `open_array` or `open_group` open, or an `Array`; where to, as for
        `create_array`.
    overwrite
        Whether to delete what is at `dst` before, all of it; but for the rest of this
        very conversion, unless `resume` is False.
    resume
        Whether to go on with what an interrupted conversion left.
    verify
        Whether to read both arrays at the end and compare them, bit for bit.
    progress
        True: a bar on stderr; or what is called with the bytes done and bytes in all.
    storage_options, dst_storage_options, options
        Settings of the stores of URLs; knobs of reading and writing.
    **target
        shards, chunks, compressors, memory_limit and more: `ConvertArguments`.

    Raises
    ------
    OptionError
        There is something at `dst` already, or an argument does not fit.
    NotFoundError, MetadataError, UnsupportedError, StoreError
        The source cannot be read or told in v3, or the store not be written to.
    CorruptShardError
        The source is damaged, or `verify` found a difference.
    """
    options = _limited(instance(options, "options", Options), target)
    if isinstance(src, Array):
        source = src.source.store, join(src.path, instance(src_path, "path", str))
    else:
        source = resolve(src, src_path, options, storage_options)
    nodes = nodes_at(*source, options)
    with naming(str(dst), dst_path):
        to = open_or_make(dst, dst_path, options, dst_storage_options)
        refuse_overlap(source, to)
        conversion = Conversion(source[0], *to, options, resume, overwrite)
        return conversion.run(nodes, target, progress, verify=verify)


def _limited(options: Options, target: ConvertArguments) -> ReadOptions:
    """Options with the limits among the arguments, all of which are known ones.

    Raises
    ------
    OptionError
        One is not, or a limit has no possible value.
    """
    known = {**TargetArguments.__annotations__, **ConvertArguments.__annotations__}
    unknown = target.keys() - known.keys()
    if unknown:
        raise OptionError(
            f"convert has no argument {min(unknown)!r}", expected=", ".join(known)
        )
    limit, threads = target.get("memory_limit"), target.get("num_threads")
    return options.but(memory_limit=limit, threads=threads).resolved()
