"""Machine code of the loops: as the content of a file, and mapped to run.

Wheels ship such a file (`build_backend.py` makes it). It serves every CPU of the last
fifteen years: code for newer ones is no faster
(`docs/decisions/2026-11-28-loops-in-the-wheel.md`).
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import sys
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpushard.fused.addresses import address_of
from gpushard.fused.code.elf import MachineCode

# Of the micro-architecture levels in the System V ABI, AMD64 supplement, 3.1.1. The
# flags are what /proc/cpuinfo calls the instructions that it has.
CPU_LEVEL = "x86-64-v2"
_CPU_FLAGS = {"cx16", "lahf_lm", "popcnt", "pni", "ssse3", "sse4_1", "sse4_2"}
_CPU_INFO = Path("/proc/cpuinfo")
# Modules, relative to the package, that determine the content of the file.
SOURCES = (
    "codecs/blosc_frame",
    "codecs/libzstd",
    "fused/code/compiling",
    "fused/code/elf",
    "fused/columns",
    "fused/compiled/blosc_frames",
    "fused/compiled/blosclz",
    "fused/compiled/calls",
    "fused/compiled/casts",
    "fused/compiled/chunk_files",
    "fused/compiled/copies",
    "fused/compiled/decoding",
    "fused/compiled/loops",
    "fused/compiled/lz4",
    "fused/compiled/planning",
    "fused/compiled/polling",
    "fused/compiled/relaying",
    "fused/compiled/shuffling",
    "fused/compiled/vectors",
    "fused/compiled/zstd_frames",
    "fused/words",
    "planning/index",
    "fused/code/machine_code",  # for the layout of the file
)
SHIPPED = Path(__file__).with_name("loops.bin")
_MAGIC = b"gpushard loops 2\n"
_HEAD_NBYTES = len(_MAGIC) + sha256().digest_size


class MappedCode(NamedTuple):
    """Machine code in memory: the address of its function, and the memory."""

    address: int
    memory: mmap.mmap


def is_of_a_moment(error: Exception) -> bool:
    """Whether no file descriptor was left, after which callers look again."""
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)


@cache
def sources() -> bytes:
    """Text of all modules that are compiled."""
    package = Path(__file__).parents[2]
    return b"".join(_content(package / f"{name}.py") for name in SOURCES)


def _content(path: Path) -> bytes:
    """Content of a file of the package, which may lie in a zip file."""
    loader: Any = __spec__.loader if __spec__ else None
    return loader.get_data(str(path)) if loader else path.read_bytes()


@cache
def can_run() -> bool:
    """Whether such code is made for this system, and for this CPU."""
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        return False
    try:
        return _flags() >= _CPU_FLAGS
    except OSError as error:
        if is_of_a_moment(error):
            raise
        return False


def _flags() -> set[str]:
    """What the first CPU can do, which is what all can."""
    with _CPU_INFO.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name.strip() == "flags":
                return set(value.split())
    return set()


def content_of(code: MachineCode) -> bytes:
    """Content of a file that holds code of these sources."""
    digest = sha256(sources()).hexdigest()
    fields = {"entry": code.entry, "imports": code.imports, "sources": digest}
    content = json.dumps(fields).encode() + b"\n" + code.data
    return _MAGIC + sha256(content).digest() + content


def code_in(data: bytes) -> MachineCode | None:
    """Code in a file's content; None if it is damaged, or of other sources."""
    content = data[_HEAD_NBYTES:]
    if data[:_HEAD_NBYTES] != _MAGIC + sha256(content).digest():
        return None
    head, _, code = content.partition(b"\n")
    fields = json.loads(head)
    if fields["sources"] != sha256(sources()).hexdigest():
        return None
    return MachineCode(code, fields["entry"], tuple(fields["imports"]))


def find_shipped() -> MachineCode | None:
    """The code that came with the package; None if there is none for this machine."""
    if not can_run():
        return None
    try:
        return code_in(_content(SHIPPED))
    except OSError as error:
        if is_of_a_moment(error):
            raise
        return None  # a checkout, or a package whose sources are not there


def map_code(code: MachineCode) -> MappedCode | None:
    """The code in memory where it can run; None if the system forbids that."""
    library = ctypes.CDLL(None)
    slots = b"".join(
        (ctypes.cast(library[name], ctypes.c_void_p).value or 0).to_bytes(8, "little")
        for name in code.imports
    )
    n = len(code.data)
    memory = mmap.mmap(-1, n, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(slots + code.data[len(slots) :])
    start = address_of(np.frombuffer(memory, np.uint8))
    may = mmap.PROT_READ | mmap.PROT_EXEC
    if library.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(n), may) != 0:
        return None
    return MappedCode(start + code.entry, memory)


def may_run() -> bool:
    """Whether the system lets a process run code that it has written (Linux; W^X)."""
    nothing = MachineCode(b"\0", 0, ())
    return sys.platform != "linux" or map_code(nothing) is not None
