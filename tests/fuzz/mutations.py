"""Mutations of bytes and of JSON documents, the same for the same `random.Random`."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random

# Little-endian numbers at which comparisons and sums turn over.
WORDS = tuple(
    (value % 2 ** (8 * n)).to_bytes(n, "little")
    for n in (2, 4, 8)
    for value in (0, 1, -1, -2, 2 ** (8 * n - 1), 2 ** (8 * n - 1) - 1, 16, 255)
)

_NUMBERS = (0, 1, -1, 2, 7, 2**31, 2**32, 2**53, 2**62, 2**63, 2**64 - 1, 2**70)
_ODD: tuple[Any, ...] = (
    *(None, True, False, "", "\0", "NaN", "Infinity", "0x00", "a/b", "..", "x" * 300),
    *([], [[]], {}, [None], [0, 0], {"name": "x"}, 1.5, -0.0, 1e308, float("nan")),
)


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Bytes with some flipped, replaced, moved, cut off or added."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 1, 2, 4))):
        _damage(out, rng)
    return bytes(out)


def _damage(out: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(out) + 1)
    # What is believed stands at the two ends.
    if rng.random() < 0.4:
        at = min(len(out), rng.choice((at % 32, max(0, len(out) - 1 - at % 72))))
    word = rng.choice(WORDS)
    match rng.randrange(8):
        case 0 | 1 if at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        case 2 if at < len(out):
            out[at] = rng.randrange(256)
        case 3 | 4:
            out[at : at + len(word)] = word[: len(out) - at]
        case 5:
            stop = rng.randrange(at, len(out) + 1)
            del out[at:stop]
        case 6:
            out[at:at] = rng.randbytes(rng.randrange(1, 9))
        case _:
            start = rng.randrange(len(out) + 1)
            piece = out[start : start + rng.randrange(1, 33)]
            out[at : at + len(piece)] = piece


def damaged_steps(
    data: bytes, rng: random.Random, start: int, kinds: Sequence[int]
) -> bytes:
    """Bytes whose steps of three, from `start` on, lack one, have one more or another.

    The first byte of each is one of `kinds`. The bytes ahead of them may change, too.
    """
    at = start + 3 * rng.randrange((len(data) - start) // 3 + 1)
    step = bytes([rng.choice(kinds), rng.randrange(256), rng.randrange(256)])
    match rng.randrange(6):
        case 0:
            return data[:at] + data[at + 3 :]
        case 1:
            return data[:at] + data[at : at + 3] + data[at:]
        case 2:
            return data[:at] + bytes(3) + data[at:]
        case 3:
            k = rng.randrange(start)
            return data[:k] + bytes([rng.randrange(256)]) + data[k + 1 :]
        case 4:
            return data[:at] + step + data[at + 3 :]
        case _:
            return data[:at] + step + data[at:]


Donors = Mapping[str, Sequence[Any]]
"""Values that members of each name have had; elements count by their array's name."""


def donors_of(documents: Iterable[Any]) -> Donors:
    """Values of all members of some documents."""
    found: dict[str, list[Any]] = {}
    for document in documents:
        for holder, key, name in _places(document):
            values = found.setdefault(name, [])
            if holder[key] not in values:
                values.append(holder[key])
    return found


def damaged_document(data: bytes, rng: random.Random, donors: Donors) -> bytes | None:
    """JSON text with members changed, dropped, doubled or taken from other documents.

    None if `data` is no JSON object.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    for _ in range(rng.choice((1, 1, 1, 2))):
        _change(document, rng, donors)
    return json.dumps(document, separators=(",", ":")).encode()


def _change(document: dict[str, Any], rng: random.Random, donors: Donors) -> None:
    places = _places(document)
    if not places:
        document["name"] = copy.deepcopy(rng.choice(_ODD))
        return
    holder, key, name = rng.choice(places)
    value = holder[key]
    match rng.randrange(8):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, list):
            holder.insert(key, copy.deepcopy(value))
        case 2:
            other, k, _ = rng.choice(places)
            holder[key] = copy.deepcopy(other[k])
        case 3 if isinstance(value, int | float):
            steps = (value + 1, value - 1, -value, value * 2, value / 2)
            holder[key] = rng.choice((*steps, *_NUMBERS))
        case 4 | 5 | 6 if name in donors:
            holder[key] = copy.deepcopy(rng.choice(donors[name]))
        case _:
            odd = rng.choice((rng.choice(_ODD), rng.choice(_NUMBERS), [value]))
            holder[key] = copy.deepcopy(odd)


def _places(document: Any) -> list[tuple[Any, Any, str]]:
    """Every member below an object or array: its holder, its key and its name."""
    found: list[tuple[Any, Any, str]] = []
    below = [(document, "")]
    while below:
        here, name = below.pop()
        items = here.items() if isinstance(here, dict) else enumerate(here)
        for key, item in items:
            called = key if isinstance(key, str) else name
            found.append((here, key, called))
            if isinstance(item, dict | list):
                below.append((item, called))
    return found
