"""A relocatable object -> one piece of machine code that runs wherever it is mapped.

It reads ELF for x86-64 (System V ABI, AMD64 supplement), as far as a module needs whose
functions call one another and a few functions of the C library. An object with anything
else in it is refused, and its code is then not kept.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# Functions that a compiler calls by itself; the C standard defines them.
IMPORTS = ("memcpy", "memmove", "memset")

_MAGIC = b"\x7fELF\x02\x01\x01"  # 64 bits, little-endian, version 1
_RELOCATABLE, _X86_64 = 1, 62
_SYMBOLS, _RELOCATIONS, _NO_BITS = 2, 4, 8
_WRITE, _ALLOC = 1, 2
_UNWINDING = b".eh_frame"  # for exceptions, which nothing here throws
# R_X86_64_PC32 and _PLT32; _GOTPCREL, _GOTPCRELX and _REX_GOTPCRELX.
_DIRECT, _BY_SLOT = (2, 4), (9, 41, 42)
# Each import has a slot with its address. Behind all slots, each has a jump to that.
_SLOT_NBYTES = 8
_JUMP, _JUMP_NBYTES = b"\xff\x25", 6  # jmp *distance(%rip)

_HEADER = np.dtype(
    {
        "names": ["type", "machine", "sections", "n_sections", "names"],
        "formats": ["<u2", "<u2", "<u8", "<u2", "<u2"],
        "offsets": [16, 18, 40, 60, 62],
        "itemsize": 64,
    }
)
_SECTION = np.dtype(
    {
        "names": ["name", "type", "flags", "offset", "nbytes", "link", "info", "align"],
        "formats": ["<u4", "<u4", "<u8", "<u8", "<u8", "<u4", "<u4", "<u8"],
        "offsets": [0, 4, 8, 24, 32, 40, 44, 48],
        "itemsize": 64,
    }
)
_SYMBOL = np.dtype(
    [("name", "<u4"), ("", "V2"), ("section", "<u2"), ("value", "<u8"), ("", "V8")]
)
_RELOCATION = np.dtype(
    [("place", "<u8"), ("type", "<u4"), ("symbol", "<u4"), ("addend", "<i8")]
)


class NotMovableError(Exception):
    """An object contains something that this module cannot lay out."""


class MachineCode(NamedTuple):
    """Code that runs wherever it is mapped, once its slots have addresses.

    Attributes
    ----------
    data
        Instructions and constants, which begin with the slots.
    entry
        Offset of the function to call.
    imports
        Names of the C functions whose addresses belong in the slots, 8 bytes each.
    """

    data: bytes
    entry: int
    imports: tuple[str, ...]


class _Object(NamedTuple):
    """A parsed object: bytes, sections and their names, symbols and their names."""

    data: bytes
    sections: NDArray[Any]
    section_names: list[bytes]
    symbols: NDArray[Any]
    symbol_names: list[bytes]


def movable_code(data: bytes, entry: str) -> MachineCode:
    """Code of a compiler's object file, laid out in one piece.

    Parameters
    ----------
    data
        The object.
    entry
        Name of the function to call.

    Raises
    ------
    NotMovableError
        The object has more than functions, constants and calls of `IMPORTS`.
    """
    parsed = _parse(data)
    is_defined = parsed.symbols["section"] != 0
    foreign = {n for n, d in zip(parsed.symbol_names, is_defined, strict=True) if not d}
    imports = tuple(name for name in IMPORTS if name.encode() in foreign)
    slots = {name.encode(): i for i, name in enumerate(imports)}
    code = bytearray(_SLOT_NBYTES * len(imports))
    for slot in range(len(imports)):
        distance = _SLOT_NBYTES * slot - (len(code) + _JUMP_NBYTES)
        code += _JUMP + distance.to_bytes(4, "little", signed=True)
    bases = _lay_sections(parsed, code)
    for section in np.flatnonzero(parsed.sections["type"] == _RELOCATIONS).tolist():
        _relocate(parsed, section, code, bases, slots)
    where = [
        bases.get(section, -1) + value
        for name, section, value in zip(
            parsed.symbol_names,
            parsed.symbols["section"].tolist(),
            parsed.symbols["value"].tolist(),
            strict=True,
        )
        if name == entry.encode() and section in bases
    ]
    if len(where) != 1:
        raise NotMovableError(entry)
    return MachineCode(bytes(code), where[0], imports)


def _parse(data: bytes) -> _Object:
    if data[: len(_MAGIC)] != _MAGIC:
        raise NotMovableError("no 64-bit ELF")
    header = np.frombuffer(data, _HEADER, 1)[0]
    if header["type"] != _RELOCATABLE or header["machine"] != _X86_64:
        raise NotMovableError("no relocatable object for x86-64")
    n_sections = int(header["n_sections"])
    sections = np.frombuffer(data, _SECTION, n_sections, int(header["sections"]))
    names = _bytes_of(data, sections[int(header["names"])])
    (tables,) = np.nonzero(sections["type"] == _SYMBOLS)
    if len(tables) != 1:
        raise NotMovableError("no table of symbols")
    table = sections[tables[0]]
    symbols = np.frombuffer(_bytes_of(data, table), _SYMBOL)
    symbol_names = _bytes_of(data, sections[int(table["link"])])
    return _Object(
        data,
        sections,
        [_name_at(names, at) for at in sections["name"].tolist()],
        symbols,
        [_name_at(symbol_names, at) for at in symbols["name"].tolist()],
    )


def _bytes_of(data: bytes, section: Any) -> bytes:
    start = int(section["offset"])
    return data[start : start + int(section["nbytes"])]


def _name_at(names: bytes, start: int) -> bytes:
    return names[start : names.index(b"\0", start)]


def _lay_sections(parsed: _Object, code: bytearray) -> dict[int, int]:
    """Append code and constants to `code`; return the offset of each such section."""
    bases: dict[int, int] = {}
    for number, section in enumerate(parsed.sections):
        is_kept = section["flags"] & _ALLOC and section["nbytes"]
        if not is_kept or parsed.section_names[number] == _UNWINDING:
            continue
        if section["flags"] & _WRITE or section["type"] == _NO_BITS:
            raise NotMovableError("variables")
        code += bytes(-len(code) % max(int(section["align"]), 1))
        bases[number] = len(code)
        code += _bytes_of(parsed.data, section)
    return bases


def _relocate(
    parsed: _Object,
    section: int,
    code: bytearray,
    bases: dict[int, int],
    slots: dict[bytes, int],
) -> None:
    """Write the distances that a section of relocations describes."""
    target = int(parsed.sections[section]["info"])
    if target not in bases:
        return  # for a section that is left out
    rows = np.frombuffer(_bytes_of(parsed.data, parsed.sections[section]), _RELOCATION)
    jumps = _SLOT_NBYTES * len(slots)
    for place, kind, symbol, addend in rows.tolist():
        name = parsed.symbol_names[symbol]
        home = int(parsed.symbols[symbol]["section"])
        if home in bases and kind in _DIRECT:
            found = bases[home] + int(parsed.symbols[symbol]["value"])
        elif home == 0 and name in slots and kind in _DIRECT:
            found = jumps + _JUMP_NBYTES * slots[name]
        elif home == 0 and name in slots and kind in _BY_SLOT:
            found = _SLOT_NBYTES * slots[name]
        else:
            raise NotMovableError(f"{name.decode(errors='replace')}, kind {kind}")
        at = bases[target] + place
        distance = found + addend - at
        code[at : at + 4] = distance.to_bytes(4, "little", signed=True)
