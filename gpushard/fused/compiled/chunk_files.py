"""Chunk files, of one inner chunk each -> opened, read, decoded, placed (compiled).

This is imported only once reads are large enough to pay for it. For each box, the file
is that of its inner chunk, which is opened, read and closed here.
"""

from __future__ import annotations

from typing import Any

from gpushard.fused.columns import (
    ENTRY,
    FILE,
    FILLED,
    HIGH,
    LOW,
    NBYTES,
    NO_FILE,
    WORK_WINDOW,
)
from gpushard.fused.compiled import calls
from gpushard.fused.compiled.loops import place_boxes
from gpushard.fused.words import (
    OPENAT2,
    STATUS_NBYTES,
    VERSION_NBYTES,
    Decoder,
    Opener,
)

_HOW_NBYTES = 24  # struct open_how of openat2(2)
# statx(2): of an open file, or at a path as the server of a network file system knows
# it now (as open(2) asks), the basic fields, and where they lie in `struct statx`.
_OF_OPEN_FILE, _AT_PATH, _BASIC = 0x1000, 0x2000, 0x7FF
_MODE, _INODE, _SIZE, _CTIME, _MTIME, _DEVICE = 28, 32, 40, 96, 112, 136
_SECOND_NS = 1_000_000_000
_KIND_OF_FILE, _REGULAR = 0o170000, 0o100000
# errno(3), the same on all machines.
_NO_SUCH_FILE, _NO_DIRECTORY = 2, 20
_ZERO, _MINUS = ord("0"), ord("-")


@calls.inner
def _put_number(number: int, at: int) -> int:
    """Write decimal digits; the address behind the last."""
    if number < 0:
        calls.store_int8(at, _MINUS)
        at, number = at + 1, -number
    behind, rest = at + 1, number // 10
    while rest:
        behind += 1
        rest //= 10
    digit = behind - 1
    while digit >= at:
        calls.store_int8(digit, _ZERO + number % 10)
        digit -= 1
        number //= 10
    return behind


@calls.inner
def _put_path(o: Opener, number: int) -> int:
    """Write the path of a file; its address."""
    path = o.status + 2 * STATUS_NBYTES
    calls.copy_bytes(path, o.prefix, o.prefix_nbytes)
    at = path + o.prefix_nbytes
    for axis in range(o.n_axes):
        if axis:
            calls.store_int8(at, o.separator)
            at += 1
        stride = calls.word(o.strides, axis)
        at = _put_number(number // stride + calls.word(o.offsets, axis), at)
        number %= stride
    calls.store_int8(at, 0)
    return path


@calls.inner
def _open(o: Opener, box: Any, n: int) -> int:
    """Descriptor of a box' file; -1 if it cannot be opened. Notes missing files."""
    call = (OPENAT2, o.root, _put_path(o, box[ENTRY]), o.how, _HOW_NBYTES)
    fd = calls.call_syscall(o.syscall, call)
    if fd >= 0:
        return fd
    error = calls.load_32(calls.call_errno(o.errno, ()))
    if o.knows_missing and error in (_NO_SUCH_FILE, _NO_DIRECTORY):
        calls.store_bool(o.missing + n, 1)
    return -1


@calls.inner
def _looked_at(o: Opener, fd: int, at: int) -> bool:
    """Write the status of an open file to `at`; whether it is a regular file."""
    call = (fd, o.how + _HOW_NBYTES, _OF_OPEN_FILE, _BASIC, at)
    if calls.call_statx(o.statx, call) != 0:
        return False
    return calls.load_16(at + _MODE) & _KIND_OF_FILE == _REGULAR


@calls.inner
def _are_same(a: int, b: int) -> bool:
    """Whether two statuses are those of a file that was not written to in between."""
    return (
        calls.load_64(a + _INODE) == calls.load_64(b + _INODE)
        and calls.load_64(a + _SIZE) == calls.load_64(b + _SIZE)
        and calls.load_64(a + _MTIME) == calls.load_64(b + _MTIME)
        and calls.load_32(a + _MTIME + 8) == calls.load_32(b + _MTIME + 8)
        and calls.load_64(a + _CTIME) == calls.load_64(b + _CTIME)
        and calls.load_32(a + _CTIME + 8) == calls.load_32(b + _CTIME + 8)
    )


@calls.inner
def _time_ns(at: int) -> int:
    return calls.load_64(at) * _SECOND_NS + calls.load_32(at + 8)


@calls.inner
def _put_version(status: int, at: int) -> None:
    """Write the version of the file with a status."""
    calls.copy_64(at, status + _DEVICE)
    calls.copy_64(at + 8, status + _INODE)
    calls.copy_64(at + 16, status + _SIZE)
    calls.store_int64(at + 24, _time_ns(status + _MTIME))
    calls.store_int64(at + 32, _time_ns(status + _CTIME))


@calls.inner
def _has_version(o: Opener, box: Any, n: int) -> bool:
    """Whether the file of the n-th box, which is not open, has the box' version."""
    status, now = o.status, o.status + STATUS_NBYTES
    call = (o.root, _put_path(o, box[ENTRY]), _AT_PATH, _BASIC, status)
    if o.versions == 0 or calls.call_statx(o.statx, call) != 0:
        return False
    _put_version(status, now)
    version = o.versions + n * VERSION_NBYTES
    for word in range(VERSION_NBYTES // 8):
        if calls.word(now, word) != calls.word(version, word):
            return False
    return True


@calls.inner
def _place_chunk_file(
    how: tuple[Decoder, Opener],
    boxes: Any,
    at: tuple[int, int],
    strides: Any,
    work: Any,
    is_placed: Any,
) -> None:
    """Place the boxes ``at[0]:at[1]`` of one file, if nobody writes to it meanwhile."""
    d, o = how
    first, stop = at
    fd = _open(o, boxes[first], first)
    if fd < 0:
        for k in range(first + 1, stop):
            calls.store_bool(o.missing + k, calls.load_8(o.missing + first))
        return
    before, after = o.status, o.status + STATUS_NBYTES
    if _looked_at(o, fd, before):
        nbytes = calls.load_64(before + _SIZE)
        if 0 < nbytes <= o.most_nbytes:
            for k in range(first, stop):
                boxes[k, FILE], boxes[k, NBYTES] = fd, nbytes
                boxes[k, LOW], boxes[k, HIGH] = 0, nbytes
            place_boxes(d, boxes, at, strides, work, is_placed)
            if not (_looked_at(o, fd, after) and _are_same(before, after)):
                for k in range(first, stop):
                    is_placed[k] = False
            elif o.versions:
                _put_version(before, o.versions + first * VERSION_NBYTES)
    calls.call_close(o.close, (fd,))
    work[WORK_WINDOW, 0] = NO_FILE  # the next file may get the same descriptor


@calls.inner
def place_chunk_files(
    how: tuple[Decoder, Opener],
    boxes: Any,
    share: tuple[int, int],
    strides: Any,
    work: Any,
    is_placed: Any,
) -> None:
    """Place the boxes of each file; the arguments are as for `loops.place_boxes`.

    Boxes of one file lie side by side and have the same `ENTRY`. Boxes of a file that
    is missing, not regular, too large or written to meanwhile are not placed, nor are
    those of a kept inner chunk whose file has another version.
    """
    i, end = share
    while i < end:
        stop = i + 1
        while stop < end and boxes[stop, ENTRY] == boxes[i, ENTRY]:
            stop += 1
        if boxes[i, FILE] != FILLED:
            _place_chunk_file(how, boxes, (i, stop), strides, work, is_placed)
        elif _has_version(how[1], boxes[i], i):
            place_boxes(how[0], boxes, (i, stop), strides, work, is_placed)
        i = stop
