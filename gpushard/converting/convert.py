"""`convert`: any readable array, or a group of arrays -> sharded Zarr v3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Unpack

from gpushard.arguments import flag, instance, keywords_of, refuse_unknown
from gpushard.array import Array
from gpushard.converting.conversion import Conversion, ConversionReport
from gpushard.converting.kept import TargetArguments
from gpushard.converting.nodes import Nodes, nodes_at, nodes_of, refuse_overlap
from gpushard.converting.progress import Progress
from gpushard.creation import opened_or_made
from gpushard.errors import naming
from gpushard.group import Group
from gpushard.hierarchies.documents import join
from gpushard.nearby import hinting
from gpushard.options import DEFAULT, Options, ReadOptions
from gpushard.stores.resolve import resolve

if TYPE_CHECKING:
    from gpushard.stores.base import Store
    from gpushard.stores.resolve import Target


class ConvertArguments(TargetArguments, total=False):
    """Arguments of a conversion, all of which are optional.

    Attributes
    ----------
    shards, chunks, filters, serializer, compressors, index_location
        As in `TargetArguments`.
    memory_limit, num_threads
        Override those of the options. Elements and encoded shards in flight stay under
        the memory limit.
    """

    memory_limit: int | None
    num_threads: int | None


def convert(  # noqa: PLR0913 - four by position, the rest by name
    src: Target | Array | Group,
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
    """Copy the array or group at `src` to sharded arrays of Zarr v3 at `dst`.

    The new arrays have the same elements, attributes, dimension names and fill values.
    If `src` is a group, all arrays below it are converted. Called again, an interrupted
    conversion continues: finished shards are not written again. See docs/convert.md.

    Parameters
    ----------
    src, src_path, dst, dst_path
        Source: anything that `open_array` or `open_group` opens, or what they return
        (a view of a rolling array too), as it is open.
        Destination: as for `create_array`.
    overwrite
        Whether to delete everything at `dst` first. If an interrupted run of the same
        conversion lies there, it is kept, unless `resume` is False.
    resume
        Whether to continue an interrupted run of the same conversion.
    verify
        Whether to read both arrays at the end and compare them, bit for bit.
    progress
        True shows a bar on stderr; a callable gets the bytes done and the bytes in all.
    storage_options, dst_storage_options, options
        Settings for stores at URLs, and options for reading and writing.
    **target
        shards, chunks, compressors, memory_limit and more: `ConvertArguments`.

    Raises
    ------
    OptionError
        Something is at `dst` already, or an argument does not fit.
    NotFoundError, MetadataError, UnsupportedError, StoreError
        The source cannot be read or expressed in v3, or `dst` cannot be written to.
    CorruptShardError
        The source is damaged, or `verify` found a difference.
    """
    overwrite, resume = flag(overwrite, "overwrite"), flag(resume, "resume")
    verify = flag(verify, "verify")
    options = _limited(instance(options, "options", Options), target)
    source = _source(src, src_path, options, storage_options)
    nodes = _nodes(None if src_path else src, source, options)
    to_open = opened_or_made(dst, dst_path, options, dst_storage_options)
    with naming(str(dst), dst_path), to_open as to:
        refuse_overlap(source, to)
        conversion = Conversion(nodes, source[0], *to, options, resume, overwrite)
        return conversion.run(target, progress, verify=verify)


def _source(
    src: Target | Array | Group,
    path: str,
    options: Options,
    storage_options: Mapping[str, Any] | None,
) -> tuple[Store, str]:
    """Store that has the source, and the path in it."""
    if not isinstance(src, Array | Group):
        with hinting(src, path):
            return resolve(src, path, options, storage_options)
    store = src.source.store if isinstance(src, Array) else src.store
    return store, join(src.path, instance(path, "path", str).strip("/"))


def _nodes(src: Any, source: tuple[Store, str], options: Options) -> Nodes:
    """What `src` has if it is open already, else what the source has."""
    # What is open may be another window, or metadata that are not consolidated.
    if isinstance(src, Array):
        return nodes_of(src.source.layout)
    if isinstance(src, Group):
        return nodes_of(src.on_host())
    return nodes_at(*source, options)


def _limited(options: Options, target: ConvertArguments) -> ReadOptions:
    """Options with the limits among the arguments; refuses unknown arguments."""
    ours = {**TargetArguments.__annotations__, **ConvertArguments.__annotations__}
    refuse_unknown(target, [*ours, *keywords_of(convert)], "convert has no argument")
    limit, threads = target.get("memory_limit"), target.get("num_threads")
    return options.but(memory_limit=limit, threads=threads).resolved()
