"""Rows of columns, taken without a copy where they are neighbours."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gpushard
from gpushard.selecting.numbering import as_slice, columns_at, distinct


@pytest.mark.parametrize("rows", [[3], [0, 1, 2], [5, 6, 7, 8]])
def test_neighbours_become_a_slice_and_their_columns_a_view(rows):
    table = np.arange(30).reshape(3, 10)
    taken = as_slice(np.array(rows))
    assert taken == slice(rows[0], rows[-1] + 1)
    columns = columns_at(table, taken)
    assert np.shares_memory(columns, table)
    assert columns.tolist() == table[:, rows].tolist()


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [1, 3],
        [2, 1, 0],
        [0, 2, 1, 3],
        [0, 0, 2],
        [0, 5, 1, 3],
        [4, 4],
        [0, 3, 2, 1, 4, 5],
    ],
)
def test_other_rows_stay_a_list(rows):
    table, listed = np.arange(30).reshape(3, 10), np.array(rows, np.int64)
    assert as_slice(listed) is listed
    assert columns_at(table, listed).tolist() == table[:, listed].tolist()


@pytest.mark.parametrize(
    "numbers", [[], [7], [3, 3], [5, -1, 5, 2, 2, 9], [[4, 1], [1, 0]], [1 << 62, -1]]
)
def test_distinct_numbers_are_those_of_numpy(numbers):
    given = np.array(numbers, np.int64)
    kept = given.copy()
    found = distinct(given)
    assert found.dtype == np.int64
    assert found.tolist() == np.unique(given).tolist()
    assert np.array_equal(given, kept)


ENDLESS = """
import threading, time
import numpy as np
from gpushard.selecting.numbering import distinct
numbers = np.arange(200)
def count():
    while True:
        distinct(numbers)
for _ in range(3):
    threading.Thread(target=count, daemon=True).start()
time.sleep(0.05)
"""


def test_the_interpreter_may_end_while_a_daemon_thread_finds_distinct_numbers():
    command = [sys.executable, "-c", ENDLESS]
    for _ in range(3):
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


def _may_abort(call):
    """Whether NumPy may look for different numbers without sorting them."""
    name, given = ast.unparse(call.func), {k.arg for k in call.keywords}
    if name == "np.unique":
        return not given & {"return_index", "return_inverse", "return_counts", "axis"}
    return name == "np.isin" and "kind" not in given


def test_nothing_else_finds_distinct_numbers_as_numpy_does():
    found = [
        f"{path.name}:{node.lineno}"
        for path in Path(gpushard.__file__).parent.rglob("*.py")
        if "np.unique" in (text := path.read_text()) or "np.isin" in text
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and _may_abort(node)
    ]
    assert not found
