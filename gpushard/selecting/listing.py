"""Very many elements that index arrays or a mask list, kept in the user's arrays.

Columns over all elements would take many times the memory of the user's arrays. So the
elements are read a block at a time, and converted, wrapped and checked as they are
copied, because the user's memory may change while it is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gpushard.errors import SelectionError
from gpushard.selecting.numbering import Ints, stable_order

Marks = NDArray[np.uint16]

# Elements of the user's arrays that are taken at a time. The place of one in its block
# is a mark, which has 16 bits.
BLOCK_ELEMENTS = 1 << 16


class ListedBlock(NamedTuple):
    """Some elements of a listing.

    Attributes
    ----------
    coordinates
        int64, one array of shape (n,) for each listed axis.
    out_index
        int64, shape (n,), ascending. Where each element lands: along the axis of the
        output or, for points, in the flattened output.
    """

    coordinates: tuple[Ints, ...]
    out_index: Ints

    def at(self, rows: NDArray[np.bool_] | slice) -> ListedBlock:
        """The elements at `rows`."""
        some = tuple(c[rows] for c in self.coordinates)
        return ListedBlock(some, self.out_index[rows])


class Listing(Protocol):
    """Elements in the order of the output, a block at a time."""

    @property
    def n_elements(self) -> int:
        """Number of elements."""
        ...

    @property
    def sum_of_places(self) -> int | None:
        """Sum of `out_index` over all elements; None if it is not known."""
        ...

    @property
    def n_axes(self) -> int:
        """Number of listed axes; each element has a coordinate along each."""
        ...

    @property
    def n_blocks(self) -> int:
        """Number of blocks; some may be empty."""
        ...

    def block(self, number: int) -> ListedBlock:
        """Elements of a block.

        Raises `SelectionError` if the user's array was changed since the selection was
        made.
        """
        ...

    @property
    def n_marks(self) -> int:
        """Number of marks that tell an element from others of its block; 0 for none."""
        ...

    def marks(self, number: int, rows: Ints) -> Marks:
        """Marks of the elements `rows` of a block: shape (n_marks, n_rows).

        Raises as `block`.
        """
        ...

    def at(self, numbers: Ints, marks: Marks) -> ListedBlock:
        """Elements with these marks in blocks of these numbers, one number each.

        Both are in the order of the output. Raises as `block`.
        """
        ...

    def overlaps(self, array: NDArray[Any]) -> bool:
        """Whether writing to `array` may change the elements."""
        ...


class IndexArrays:
    """Elements that integer arrays list, one array per axis.

    Parameters
    ----------
    arrays
        Host, any integer data type and strides, all of one shape. Checked: from
        ``-extent`` on and below ``extent``. A mask of one axis stands for the positions
        of its true elements, which are repeated as often as the others need.
    n_elements
        Number of listed elements; None means the size of the first array.
    """

    n_marks = 1  # the place in the block

    def __init__(
        self,
        arrays: Sequence[NDArray[Any]],
        extents: Sequence[int],
        n_elements: int | None = None,
    ) -> None:
        self._flat = [
            _Positions(array) if array.dtype == bool else _Flat(array)
            for array in arrays
        ]
        self._extents = extents
        self.n_elements = arrays[0].size if n_elements is None else n_elements
        self.sum_of_places = _sum_below(self.n_elements)
        self.n_axes = len(arrays)
        self.n_blocks = -(-self.n_elements // BLOCK_ELEMENTS)

    def block(self, number: int) -> ListedBlock:
        """Elements of a block; see `Listing`."""
        first = number * BLOCK_ELEMENTS
        last = min(first + BLOCK_ELEMENTS, self.n_elements)
        coordinates = tuple(
            _wrapped(flat.copied(first, last), extent)
            for flat, extent in zip(self._flat, self._extents, strict=True)
        )
        return ListedBlock(coordinates, np.arange(first, last, dtype=np.int64))

    def marks(self, number: int, rows: Ints) -> Marks:
        """Marks of elements of a block; see `Listing`."""
        del number  # places are counted within any block
        return rows[np.newaxis].astype(np.uint16)

    def at(self, numbers: Ints, marks: Marks) -> ListedBlock:
        """Elements with these marks; see `Listing`."""
        place = numbers * BLOCK_ELEMENTS
        place += marks[0]
        coordinates = tuple(
            _wrapped(flat.taken(place), extent)
            for flat, extent in zip(self._flat, self._extents, strict=True)
        )
        return ListedBlock(coordinates, place)

    def overlaps(self, array: NDArray[Any]) -> bool:
        """Whether writing to `array` may change the elements; see `Listing`."""
        return any(np.may_share_memory(flat.array, array) for flat in self._flat)


class _Positions:
    """Positions of the true elements of a mask of one axis, again and again."""

    def __init__(self, mask: NDArray[np.bool_]) -> None:
        self.array = mask
        self._true = TrueElements(mask)

    def copied(self, first: int, last: int) -> Ints:
        """Positions ``first:last``, of those of all repetitions."""
        n = self._true.n_elements
        found: list[Ints] = []
        while first < last:
            begin = first % n
            end = min(begin + last - first, n)
            found.append(self._true.positions(begin, end))
            first += end - begin
        return np.concatenate(found)

    def taken(self, place: Ints) -> Ints:
        """Positions at some places, in any order."""
        nth = place % self._true.n_elements
        order = stable_order(nth)
        if order is None:
            return self._true.positions_of(nth)
        found = np.empty_like(nth)
        found[order] = self._true.positions_of(nth[order])
        return found


class TrueElements:
    """Elements where a mask is true.

    Attributes
    ----------
    mask
        bool, host, of any strides, of the shape of the axes that it covers.
    """

    n_marks = 2  # the place among the true elements of the block, and in the mask

    def __init__(self, mask: NDArray[np.bool_]) -> None:
        self.mask = mask
        self._shape = mask.shape
        self._flat = _Flat(mask)
        self.n_axes = mask.ndim
        self.n_blocks = -(-mask.size // BLOCK_ELEMENTS)
        counts = [
            np.count_nonzero(self._flat.given(*self._range(k)))
            for k in range(self.n_blocks)
        ]
        self._before = np.append(0, np.cumsum(counts, dtype=np.int64))
        self.n_elements = int(self._before[-1])
        self.sum_of_places = _sum_below(self.n_elements)

    def block(self, number: int) -> ListedBlock:
        """Elements of a block; see `Listing`."""
        out_first, out_last = self._before[number : number + 2].tolist()
        found = self._found(number)
        return ListedBlock(
            self._along(found), np.arange(out_first, out_last, dtype=np.int64)
        )

    def positions(self, first: int, last: int) -> Ints:
        """Positions in the flattened mask of the elements ``first:last``, at least one.

        Raises as `Listing.block`.
        """
        low = int(np.searchsorted(self._before, first, side="right")) - 1
        high = int(np.searchsorted(self._before, last))
        found = np.concatenate([self._found(k) for k in range(low, high)])
        begin = first - int(self._before[low])
        return found[begin : begin + last - first]

    def positions_of(self, nth: Ints) -> Ints:
        """Positions in the flattened mask of some elements, which ascend.

        Raises as `Listing.block`.
        """
        found = np.empty_like(nth)
        ends = np.searchsorted(nth, self._before)
        for k in np.flatnonzero(ends[1:] > ends[:-1]).tolist():
            some = slice(ends[k], ends[k + 1])
            found[some] = self._found(k)[nth[some] - self._before[k]]
        return found

    def marks(self, number: int, rows: Ints) -> Marks:
        """Marks of elements of a block; see `Listing`."""
        place = self._found(number)[rows] - self._range(number)[0]
        return np.stack([rows, place]).astype(np.uint16)

    def at(self, numbers: Ints, marks: Marks) -> ListedBlock:
        """Elements with these marks; see `Listing`."""
        found = numbers * BLOCK_ELEMENTS
        found += marks[1]
        if not self._flat.taken(found).all():
            raise elements_changed()
        return ListedBlock(self._along(found), self._before[numbers] + marks[0])

    def overlaps(self, array: NDArray[Any]) -> bool:
        """Whether writing to `array` may change the elements; see `Listing`."""
        return np.may_share_memory(self.mask, array)

    def _along(self, found: Ints) -> tuple[Ints, ...]:
        """Coordinate along each axis, of positions in the flattened mask."""
        return np.unravel_index(found, self._shape) if self.n_axes > 1 else (found,)

    def _found(self, number: int) -> Ints:
        """Positions in the flattened mask of the elements of a block."""
        first, last = self._range(number)
        found = np.flatnonzero(self._flat.given(first, last))
        if len(found) != int(self._before[number + 1] - self._before[number]):
            raise elements_changed()
        found += first
        return found

    def _range(self, number: int) -> tuple[int, int]:
        first = number * BLOCK_ELEMENTS
        return first, min(first + BLOCK_ELEMENTS, self._flat.n_elements)


def _sum_below(n: int) -> int:
    """Sum of the numbers from 0 to ``n - 1``."""
    return n * (n - 1) // 2


def all_of(listing: Listing) -> ListedBlock:
    """All elements as one block: columns over all of them."""
    blocks = map(listing.block, range(listing.n_blocks))
    return join_blocks(blocks, listing.n_axes, listing.n_elements)


def join_blocks(
    blocks: Iterable[ListedBlock], n_axes: int, n_elements: int
) -> ListedBlock:
    """Several blocks with `n_elements` in total, as one block.

    Raises `SelectionError` if the total is another: the user's array was changed since
    they were counted.
    """
    columns = tuple(np.empty(n_elements, np.int64) for _ in range(n_axes + 1))
    done = 0
    for block in blocks:
        end = done + len(block.out_index)
        if end > n_elements:
            raise elements_changed()
        given = *block.coordinates, block.out_index
        for column, some in zip(columns, given, strict=True):
            column[done:end] = some
        done = end
    if done < n_elements:
        raise elements_changed()
    return ListedBlock(columns[:-1], columns[-1])


class _Flat:
    """The elements of an array in C order, without a copy if it is contiguous."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array
        self.n_elements = array.size

    def given(self, first: int, last: int) -> NDArray[Any]:
        """Elements ``first:last``, which may be the user's own memory."""
        if self.array.flags.c_contiguous:
            return self.array.reshape(-1)[first:last]
        return self.copied(first, last)

    def copied(self, first: int, last: int) -> NDArray[Any]:
        """Elements ``first:last`` in new memory."""
        out = np.empty(last - first, self.array.dtype)
        _copy(self.array, first, last, out)
        return out

    def taken(self, place: Ints) -> NDArray[Any]:
        """Elements at these places, in new memory."""
        if self.array.flags.c_contiguous:
            return self.array.reshape(-1).take(place)
        return self.array[np.unravel_index(place, self.array.shape)]


def _copy(array: NDArray[Any], first: int, last: int, out: NDArray[Any]) -> None:
    """Copy elements ``first:last`` in C order: runs of whole rows, and their ends.

    ``array.flat`` goes to each element by itself, which takes ten times as long.
    """
    if array.ndim < 2 or array.flags.c_contiguous:
        out[:] = array.reshape(-1)[first:last]
        return
    n = array.size // len(array)
    whole, end = -(-first // n), last // n
    if whole > end:  # all in one row, and at neither of its ends
        _copy(array[end], first - end * n, last - end * n, out)
        return
    before, behind = whole * n - first, last - end * n
    if before:
        _copy(array[whole - 1], n - before, n, out[:before])
    stop = len(out) - behind
    rows = array[whole:end]
    out[before:stop].reshape(rows.shape)[...] = rows
    if behind:
        _copy(array[end], 0, behind, out[stop:])


def _wrapped(index: NDArray[Any], extent: int) -> Ints:
    """Indexes counted from the start of an axis; `index` is a copy of the user's."""
    low, high = index.min(), index.max()
    if high >= extent or low < -extent:
        raise elements_changed()
    index = index.astype(np.int64, copy=False)
    if low < 0:
        index[index < 0] += extent
    return index


def elements_changed() -> SelectionError:
    """Error for elements that changed after they were counted."""
    return SelectionError(
        "an index array or a mask was changed while the elements it names were read",
        hint="let no other thread write to it, and read into other memory",
    )
