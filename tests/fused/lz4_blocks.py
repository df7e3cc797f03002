"""LZ4 blocks, legal and not, and memory whose neighbours cannot be touched."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numcodecs.lz4
import numpy as np

_C = ctypes.CDLL(None)
_PROT_NONE = 0


class GuardedRoom:
    """Room between two pages that kill who touches them.

    Parameters
    ----------
    nbytes
        Size, rounded up to whole pages.
    """

    def __init__(self, nbytes: int) -> None:
        page = mmap.PAGESIZE
        self.nbytes = -(-nbytes // page) * page
        # Kept: the addresses are good as long as the map is.
        self._map = mmap.mmap(-1, self.nbytes + 2 * page)
        self.start = ctypes.addressof(ctypes.c_char.from_buffer(self._map)) + page
        self.stop = self.start + self.nbytes
        for guard in (self.start - page, self.stop):
            arguments = (ctypes.c_void_p(guard), ctypes.c_size_t(page), _PROT_NONE)
            assert _C.mprotect(*arguments) == 0

    def place(self, data: bytes, *, at_end: bool) -> int:
        """Address of `data`, put at one end of the room."""
        assert len(data) <= self.nbytes
        address = self.stop - len(data) if at_end else self.start
        ctypes.memmove(address, data, len(data))
        return address


class Decoding:
    """The compiled decoder between guards.

    Parameters
    ----------
    most_nbytes
        Of a block, and of what it decodes to.
    """

    def __init__(self, most_nbytes: int) -> None:
        from gpushard.fused.compiled.lz4 import decode_lz4

        self._decode = decode_lz4
        self._source = GuardedRoom(most_nbytes)
        self._target = GuardedRoom(most_nbytes + 64)

    def __call__(
        self, block: bytes, nbytes: int, *, at_end: bool, enough: int | None = None
    ) -> bytes | None:
        """The first bytes of what a block decodes to, if to exactly `nbytes`.

        Of a block of which fewer bytes are enough, the rest need not be known.
        """
        source = self._source.place(block, at_end=at_end)
        # What is on the near side is readable, but nobody's business.
        untouched = b"\xa5" * 64
        if at_end:
            room = self._target.place(untouched + bytes(nbytes), at_end=True) + 64
            canary = room - 64
        else:
            room = self._target.place(bytes(nbytes) + untouched, at_end=False)
            canary = room + nbytes
        enough = nbytes if enough is None else enough
        is_decoded = self._decode(source, len(block), room, nbytes, enough)
        assert ctypes.string_at(canary, 64) == untouched
        assert ctypes.string_at(source, len(block)) == block
        return ctypes.string_at(room, enough) if is_decoded else None


def decoded_by_library(block: bytes, nbytes: int) -> bytes | None:
    """What the reference decoder makes of a block, if exactly `nbytes`."""
    try:
        return numcodecs.lz4.decompress(nbytes.to_bytes(4, "little") + block)
    except RuntimeError:
        return None


def encoded(data: bytes, acceleration: int = 1) -> bytes:
    """Block of the reference encoder, without the size ahead of it."""
    return bytes(numcodecs.lz4.compress(data, acceleration))[4:]


def sequence(literals: bytes, distance: int | None, n_match: int = 4) -> bytes:
    """Sequence of a block; the last one has no distance."""
    n = len(literals)
    token = min(n, 15) << 4
    if distance is not None:
        token |= min(n_match - 4, 15)
    head = bytes([token]) + _rest_of_length(n) + literals
    if distance is None:
        return head
    return head + distance.to_bytes(2, "little") + _rest_of_length(n_match - 4)


def _rest_of_length(n: int) -> bytes:
    if n < 15:
        return b""
    n_full, rest = divmod(n - 15, 255)
    return b"\xff" * n_full + bytes([rest])


def sequences(block: bytes) -> list[tuple[int, int, int]]:
    """Literals, distance and match length of each sequence but the last."""
    found: list[tuple[int, int, int]] = []
    at = 0

    def length(n: int) -> int:
        nonlocal at
        while n % 255 == 15 and at < len(block):
            n += block[at]
            at += 1
            if block[at - 1] != 255:
                break
        return n

    while at < len(block):
        token = block[at]
        at += 1
        n_literals = length(token >> 4)
        at += n_literals
        distance = int.from_bytes(block[at : at + 2], "little")
        at += 2
        if at < len(block):
            found.append((n_literals, distance, length(token & 15) + 4))
    return found


def is_illegal(block: bytes, nbytes: int) -> bool:
    """Whether a block breaks a rule that the reference decoder does not always hold.

    A match has a distance, and ends ahead of the last five bytes.
    """
    n_left = nbytes
    for n_literals, distance, n_match in sequences(block):
        n_left -= n_literals + n_match
        if not distance or n_left < 5:
            return True
    return False


def sample(rng: np.random.Generator) -> bytes:
    """Runs, noise, repetitions at small distances, and mixtures of them."""
    parts: list[bytes] = []
    for _ in range(rng.integers(1, 6)):
        n = int(rng.choice([1, 5, 12, 13, 14, 15, 19, 40, 270, 700]))
        kind = rng.integers(4)
        if kind == 0:
            parts.append(bytes([rng.integers(256)]) * n)
        elif kind == 1:
            parts.append(rng.bytes(n))
        elif kind == 2:
            period = rng.bytes(int(rng.integers(1, 21)))
            parts.append((period * n)[:n])
        else:
            parts.append(rng.integers(0, 3, n, np.uint8).tobytes())
    return b"".join(parts)


def made_up(rng: np.random.Generator) -> tuple[bytes, int]:
    """Block of sequences that nobody would write, and about what it decodes to."""
    block, n = b"", 0
    for _ in range(rng.integers(0, 6)):
        literals = rng.bytes(int(rng.choice([0, 1, 2, 8, 13, 14, 15, 16, 40])))
        n += len(literals)
        n_match = int(rng.choice([4, 5, 8, 17, 18, 19, 20, 60, 273, 274, 300]))
        distance = int(rng.integers(1, min(n, 40) + 1)) if n else 0
        if not rng.integers(40):
            distance = int(rng.choice([0, n, n + 1, 65535]))
        block += sequence(literals, distance, n_match)
        n += n_match
    literals = rng.bytes(int(rng.choice([0, 1, 3, 4, 5, 6, 7, 8, 11, 12, 13, 14, 30])))
    return block + sequence(literals, None), n + len(literals)


def mutated(rng: np.random.Generator, block: bytes) -> bytes:
    """Block with a few bytes overwritten, cut off, put in or taken out."""
    changed = bytearray(block)
    for _ in range(rng.integers(1, 4)):
        at = int(rng.integers(len(changed))) if changed else 0
        kind: Any = rng.integers(6)
        if kind == 0 and changed:
            changed[at] ^= 1 << rng.integers(8)
        elif kind == 1 and changed:
            changed[at] = int(rng.choice([0, 1, 15, 16, 0x1F, 0xF0, 0xFF]))
        elif kind == 2:
            del changed[at:]
        elif kind == 3:
            changed[at:at] = rng.bytes(int(rng.integers(1, 4)))
        elif kind == 4:
            del changed[at : at + int(rng.integers(1, 4))]
        elif changed:
            changed[at] = int(rng.integers(256))
    return bytes(changed)
