"""Objects of a compiler: laid out as one piece of machine code, or refused."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba", reason="the compiled loops need numba (extra `fast`)")

from gpushard.fused.addresses import address_of
from gpushard.fused.code import machine_code
from gpushard.fused.code.elf import NotMovableError, movable_code
from loop_objects import MODULE, object_of

HERE = sys.platform == "linux" and os.uname().machine == "x86_64"
pytestmark = pytest.mark.skipif(not HERE, reason="code is made on Linux and x86-64")


def test_code_runs_wherever_it_is_mapped():
    code = movable_code(object_of(MODULE), "run")
    assert code.imports == ("memmove", "memset")
    for _ in range(2):
        mapped = machine_code.map_code(code)
        assert mapped is not None
        run = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(mapped.address)
        for n, want in enumerate([3, 1, 4, 1]):
            words = np.array([n, 0], np.int64)
            assert run(address_of(words)) == want
            assert words.tobytes()[8:] == b"\t" * n + b"\0" * (8 - n)


def test_what_runs_can_no_longer_be_written():
    code = movable_code(object_of(MODULE), "run")
    mapped = machine_code.map_code(code)
    assert mapped is not None
    text = Path("/proc/self/maps").read_text(encoding="ascii")
    rights = []
    for place, given, *_ in map(str.split, text.splitlines()):
        low, high = (int(end, 16) for end in place.split("-"))
        if low <= mapped.address < high:  # neighbours of equal rights are one line
            rights.append(given)
    assert rights == ["r-xp"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("internal constant", "internal global"),
        ("@memmove", "@PyErr_Occurred"),
        ("@table = internal constant [4 x i64]", "@table = external global [4 x i64];"),
        ("i64 @run", "i64 @walk"),
    ],
    ids=["variables", "another function", "another variable", "no entry"],
)
def test_an_object_with_more_than_code_is_not_kept(before, after):
    changed = MODULE.replace(before, after)
    if after.startswith("internal"):
        counted = "%more = add i64 %value, 1\nstore i64 %more, ptr %at\nret i64 %value"
        changed = changed.replace("ret i64 %value", counted)
    assert changed != MODULE
    with pytest.raises(NotMovableError):
        movable_code(object_of(changed), "run")


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: b"MZ" + data[2:],
        lambda data: data[:16] + b"\2" + data[17:],
        lambda data: data[:18] + b"\xb7" + data[19:],
    ],
    ids=["nothing", "no ELF", "an executable", "another machine"],
)
def test_what_is_no_object_of_this_machine_is_not_kept(damage):
    with pytest.raises(NotMovableError):
        movable_code(damage(object_of(MODULE)), "run")
