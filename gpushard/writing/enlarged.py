"""Whether a write may replace more of an inner chunk than the open array knows of.

An array keeps the shape that it had when it was opened. A write that takes all elements
of that shape in an inner chunk, or in a shard, at the edge replaces it without a read.
If others have enlarged the array since, what they stored beyond would be lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from operator import ge
from typing import Any

from gpushard.errors import ObjectChangedError, UnsupportedError
from gpushard.hierarchies.documents import join
from gpushard.layout import GridAxis
from gpushard.metadata import DOCUMENTS, load_array
from gpushard.remade import MADE_ANEW, encoding
from gpushard.selecting.numbering import Ints
from gpushard.selecting.selection import (
    AxisSelection,
    IndexAxis,
    Listed,
    Orthogonal,
    ParsedSelection,
    SliceAxis,
    n_elements,
)
from gpushard.source import Source
from gpushard.stores.base import ByteRequest, lasts

# Among a source's findings: the documents by which it was as large as is known.
_SEEN = "documents of an array that is no larger"


def source_by_now(source: Source, selection: ParsedSelection) -> Source:
    """The array in which to write to a selection: as large as it is by now.

    Looks at the array's document where the selection reaches an edge that does not end
    a shard (a chunk, if not sharded), and reads it unless the store tells that it is
    the one that was read last. Elsewhere a write replaces what it knows.

    Raises
    ------
    ObjectChangedError
        The array was made anew, with other data types, shapes or codecs.
    NotFoundError, MetadataError, UnsupportedError, StoreError
        As for `load_array`.
    """
    layout = source.layout
    if not (n_elements(selection) and _reaches_open_edge(layout.axes, selection)):
        return source
    documents = [join(layout.path, name) for name in DOCUMENTS]
    looks = [source.store.current_version(key) for key in documents]
    is_told = all(is_told for is_told, _ in looks)
    if is_told and [version for _, version in looks] == source.findings.get(_SEEN):
        return source
    seen = _lasting_versions(source, documents) if is_told else None
    stored = load_array(source.store, layout.path, source.options)
    if encoding(stored) != encoding(layout):
        raise ObjectChangedError(
            "the array is another one than that which was opened",
            array_path=layout.path,
            hint=MADE_ANEW,
        )
    if all(map(ge, layout.shape, stored.shape)):
        source.findings[_SEEN] = seen
        return source
    axes = zip(layout.axes, stored.axes, strict=True)
    larger = tuple(max(pair, key=lambda axis: axis.extent) for pair in axes)
    shape = tuple(axis.extent for axis in larger)
    # The cache knows inner chunks by their number in the smaller grid.
    return replace(
        source, layout=replace(layout, axes=larger, shape=shape), chunks=None
    )


@contextmanager
def telling(opened: Source, now: Source) -> Iterator[None]:
    """Say in a refusal to write to a part of a shard that the array was enlarged.

    The part may be a whole shard of the array as it was opened.
    """
    try:
        yield
    except UnsupportedError as error:
        if now is not opened and error.shard_key is not None and error.hint:
            shape = now.layout.shape
            error.hint = (
                f"others have enlarged the array to {shape}: open it again, and"
                f" {error.hint}"
            )
        raise


def _lasting_versions(source: Source, keys: Sequence[str]) -> list[Any] | None:
    """Versions of an array's documents, if they show every change from now on."""
    answers = source.read([ByteRequest(key) for key in keys])
    versions = [answer.version for answer in answers if answer is not None]
    # Arrays of the draft of Zarr v3 have another document, and neither of these.
    if not versions or not all(map(lasts, versions)):
        return None
    return [answer and answer.version for answer in answers]


def _reaches_open_edge(axes: Sequence[GridAxis], selection: ParsedSelection) -> bool:
    """Whether elements may be the last ones of an axis that ends within a cell."""
    open_ = [d for d, a in enumerate(axes) if a.start_of(a.n_cells) > a.extent]
    if isinstance(selection, Listed):
        return bool(open_)
    taken: Sequence[AxisSelection | Ints] = (
        selection.axes if isinstance(selection, Orthogonal) else selection.coordinates
    )
    return any(_takes(taken[d], axes[d].extent - 1) for d in open_)


def _takes(taken: AxisSelection | Ints, element: int) -> bool:
    """Whether an element of an axis, its last one, is taken."""
    if isinstance(taken, SliceAxis):
        return taken.last == element
    return element in (taken.element if isinstance(taken, IndexAxis) else taken)
