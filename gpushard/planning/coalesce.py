"""Byte ranges -> few larger requests -> batches that fit a budget."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpushard.selecting.selection import Ints
from gpushard.stores.base import FetchCosts

# Numbers up to this one can be added without an overflow.
_MOST_SORTED = 2**62


class Requests(NamedTuple):
    """Byte ranges to fetch, and which rows each one serves.

    Attributes
    ----------
    source
        int64, shape (n_requests,). The object that each request reads.
    start, stop
        int64, same shape. Half-open byte range within the object.
    bounds
        int64, shape (n_requests + 1,). Request r serves rows ``order[bounds[r] :
        bounds[r + 1]]``.
    order
        int64, shape (n_rows,). Rows sorted by object and offset.
    """

    source: Ints
    start: Ints
    stop: Ints
    bounds: Ints
    order: Ints

    @property
    def nbytes(self) -> Ints:
        """int64, shape (n_requests,). Size of each request."""
        return self.stop - self.start

    def first(self, n: int) -> Requests:
        """The first `n` requests; and their rows."""
        return Requests(
            self.source[:n],
            self.start[:n],
            self.stop[:n],
            self.bounds[: n + 1],
            self.order[: self.bounds[n]],
        )


def coalesce(
    source: Ints,
    start: Ints,
    stop: Ints,
    *,
    gap_nbytes: int,
    max_request_nbytes: int,
    is_bound: bool = False,
) -> Requests:
    """Requests that cover all byte ranges, with neighbouring ranges joined.

    Ranges may overlap, repeat and lie in any order.

    Parameters
    ----------
    source
        int64, shape (n_rows,), ascending. The object in which each range lies.
    start, stop
        int64, shape (n_rows,). Half-open byte ranges.
    gap_nbytes
        Ranges that leave at most this many unwanted bytes between them are joined.
    max_request_nbytes
        A request is cut where it reaches this size; a larger range stays whole.
    is_bound
        Whether a request of several ranges must never exceed `max_request_nbytes`.
    """
    if not len(source):
        empty = np.empty(0, np.int64)
        return Requests(empty, empty, empty, np.zeros(1, np.int64), empty)
    goes_on = source[1:] == source[:-1]
    order = np.arange(len(source), dtype=np.int64)
    # The offsets are mostly sorted, since shards are written in a fixed order.
    if np.any(goes_on & (start[1:] < start[:-1])):
        order = _by_source_and_start(source, start)
        start, stop = start[order], stop[order]
    reach = stop
    if np.any(goes_on & (stop[1:] < stop[:-1])):
        reach = _running_stop(source, stop)
    is_first = np.ones(len(source), np.bool_)
    is_first[1:] = ~goes_on | (start[1:] > reach[:-1] + gap_nbytes)
    if is_bound:
        _keep_to(max_request_nbytes, is_first, start, reach)
    else:
        _cut_at_multiples(max_request_nbytes, is_first, start)
    bounds = np.append(np.flatnonzero(is_first), len(order)).astype(np.int64)
    first = bounds[:-1]
    return Requests(
        source[first], start[first], np.maximum.reduceat(stop, first), bounds, order
    )


def coalesce_for(
    costs: FetchCosts, source: Ints, start: Ints, stop: Ints, max_request_nbytes: int
) -> Requests:
    """As `coalesce`, with gaps and bounds as a store of these costs likes them."""
    join = partial(
        coalesce,
        source,
        start,
        stop,
        max_request_nbytes=max_request_nbytes,
        is_bound=costs.bounds_requests,
    )
    if costs.idle_gap_nbytes is not None:
        requests = join(gap_nbytes=costs.idle_gap_nbytes)
        if len(requests.start) <= costs.concurrency:
            return requests
    return join(gap_nbytes=costs.gap_nbytes)


def _by_source_and_start(source: Ints, start: Ints) -> Ints:
    """Stable order of ranges by object and offset."""
    width = int(start.max()) + 1
    if int(source[-1]) * width < _MOST_SORTED:
        # Several times faster than by two keys.
        return np.argsort(source * width + start, kind="stable")
    return np.lexsort((start, source))


def _keep_to(
    largest_nbytes: int, is_first: NDArray[np.bool_], start: Ints, reach: Ints
) -> None:
    """Cut runs of ranges before a range that would make them too large."""
    firsts = np.flatnonzero(is_first)
    ends = np.append(firsts[1:], len(start))
    for r in np.flatnonzero(reach[ends - 1] - start[firsts] > largest_nbytes).tolist():
        first, end = int(firsts[r]), int(ends[r])
        while first < end:
            is_first[first] = True
            most = int(start[first]) + largest_nbytes
            fitting = np.searchsorted(reach[first:end], most, side="right")
            first += max(1, int(fitting))


def _cut_at_multiples(
    largest_nbytes: int, is_first: NDArray[np.bool_], start: Ints
) -> None:
    """Cut runs of ranges where a multiple of the largest size is passed."""
    firsts = np.flatnonzero(is_first)
    ends = np.append(firsts[1:], len(start))
    if np.any(start[ends - 1] - start[firsts] >= largest_nbytes):
        stride = (start - np.repeat(start[firsts], ends - firsts)) // largest_nbytes
        is_first[1:] |= stride[1:] != stride[:-1]


def _running_stop(source: Ints, stop: Ints) -> Ints:
    """Largest stop so far within each object."""
    reach = np.maximum.accumulate(stop)
    starts = np.flatnonzero(source[1:] != source[:-1]) + 1
    ends = np.append(starts, len(stop))[1:]
    for first, last in zip(starts, ends, strict=True):
        np.maximum.accumulate(stop[first:last], out=reach[first:last])
    return reach


def cut_batches(nbytes: Ints, budget_nbytes: int) -> list[tuple[int, int]]:
    """Half-open runs of requests, each of at most `budget_nbytes` or one request.

    `nbytes`: int64, shape (n_requests,), memory that each request takes.
    """
    total: NDArray[np.int64] = np.cumsum(nbytes)
    batches: list[tuple[int, int]] = []
    first, spent = 0, 0
    while first < len(nbytes):
        last = int(np.searchsorted(total, spent + budget_nbytes, side="right"))
        last = max(last, first + 1)
        batches.append((first, last))
        spent = int(total[last - 1])
        first = last
    return batches
