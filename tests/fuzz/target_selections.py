"""Text of a selection, against Python's own grammar and NumPy's own indexing."""

from __future__ import annotations

import ast
import re
from functools import cache
from typing import Any

import numpy as np

import gpushard
from fuzz.refusals import assert_is_told
from fuzz.shard_cases import plain_case
from gpushard.cli.selection_text import parse_selection, split_target
from gpushard.errors import SelectionError

NAME = "selections"

_GRAMMAR = re.compile(r"[0-9:,.+ -]*")
_MANY_DIGITS = re.compile(r"[0-9]{41}")
_VALUES = np.arange(5 * 6 * 7, dtype="i4").reshape(5, 6, 7)

DICTIONARY = (b"...", b"::", b"::-1", b",", b"-", b"+1", b"99999999999999999999", b"[")


def seeds() -> list[bytes]:
    texts = ("0", "1:3, ::2", "..., -1", "4:0:-2, 1,", ":", "::-1,...,:3", "9:2,7", "")
    more = ("[1]", "a[0]", "0,,1", "0:1:2:3", "1.5", "None", "- 1", "007", "...,...")
    return [text.encode() for text in (*texts, *more, "-5:99:3,5,-7")]


@cache
def _array() -> gpushard.Array:
    return plain_case(_VALUES).opened()


def check(data: bytes) -> bool:
    text = data.decode("utf-8", "replace")
    url, inside = split_target(text)
    assert text == (url if inside is None else f"{url}[{inside}]")
    read = _by_python(text)
    try:
        key = parse_selection(text)
    except SelectionError as error:
        assert_is_told(error)
        assert read is None
        return False
    assert read in (None, key), (read, key)
    return _reads_alike(key)


def _by_python(text: str) -> tuple[Any, ...] | None:
    """What Python's own parser makes of the text.

    None if it is not in the grammar, a little narrower than ours: no leading zeros, no
    white space but blanks.
    """
    if not _GRAMMAR.fullmatch(text) or _MANY_DIGITS.search(text):
        return None
    try:
        tree = ast.parse(f"_[{text}]", mode="eval").body
        inside = tree.slice if isinstance(tree, ast.Subscript) else None
        items = inside.elts if isinstance(inside, ast.Tuple) else [inside]
        key = tuple(map(_item, items))
    except (SyntaxError, ValueError):
        return None
    return None if any(isinstance(k, slice) and k.step == 0 for k in key) else key


def _item(node: Any) -> Any:
    if isinstance(node, ast.Slice):
        bounds = (node.lower, node.upper, node.step)
        return slice(*(None if bound is None else _integer(bound) for bound in bounds))
    if isinstance(node, ast.Constant) and node.value is ...:
        return ...
    return _integer(node)


def _integer(node: Any) -> int:
    if isinstance(node, ast.UnaryOp):
        is_apart = node.operand.col_offset != node.col_offset + 1
        if is_apart or isinstance(node.operand, ast.UnaryOp):
            raise ValueError
        value = _integer(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if not isinstance(node, ast.Constant) or type(node.value) is not int:
        raise ValueError
    return node.value


def _reads_alike(key: tuple[Any, ...]) -> bool:
    try:
        want = _VALUES[key]
    except IndexError:
        want = None
    try:
        got = _array()[key]
    except SelectionError as error:
        assert_is_told(error)
        assert want is None
        return False
    assert want is not None
    assert np.shape(got) == np.shape(want)
    assert np.array_equal(got, want)
    return True
