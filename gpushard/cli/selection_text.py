"""`URL[SELECTION]`: an address and a basic index, as text -> an address and a key.

The grammar is that of NumPy's basic indexing with literal integers; nothing is
evaluated.

    target    = url [ "[" item { "," item } [ "," ] "]" ]
    item      = integer | "..." | slice
    slice     = [ integer ] ":" [ integer ] [ ":" [ integer ] ]
    integer   = [ "+" | "-" ] digit { digit }
"""

from __future__ import annotations

import re
from types import EllipsisType

from gpushard.errors import SelectionError

Item = int | slice | EllipsisType

# More digits than any extent has; Python refuses to convert thousands of digits.
_INTEGER = re.compile(r"[+-]?[0-9]{1,40}")
SELECTION_HINT = "write integers, slices and ... as in u[0, :, 60:120, ::-2]"


def split_target(target: str) -> tuple[str, str | None]:
    """Address and selection of ``URL[SELECTION]``; None if there is no selection.

    The last ``[`` opens the selection, so an address may contain brackets. An address
    that ends in ``]`` needs ``[...]`` behind it.
    """
    if not target.endswith("]") or "[" not in target:
        return target, None
    url, _, inside = target[:-1].rpartition("[")
    return url, inside


def parse_selection(text: str) -> tuple[Item, ...]:
    """Key of a basic index, from the text between its brackets.

    Raises `SelectionError` if it is not in the grammar, or a slice has the step 0.
    """
    items = text.split(",")
    if len(items) > 1 and not items[-1].strip():
        items.pop()
    return tuple(_parse_item(item.strip(), text) for item in items)


def _parse_item(item: str, text: str) -> Item:
    if item == "...":
        return ...
    if ":" not in item:
        return _integer(item, text)
    parts = [part.strip() for part in item.split(":")]
    if len(parts) > 3:
        raise SelectionError(
            f"cannot read the selection [{text}]",
            expected="at most two colons in a slice",
            got=repr(item),
            hint=SELECTION_HINT,
        )
    bounds = [_integer(part, text) if part else None for part in parts]
    key = slice(*bounds)
    if key.step == 0:
        raise SelectionError(
            f"the slice {item!r} has the step 0", hint="give it a step other than 0"
        )
    return key


def _integer(part: str, text: str) -> int:
    if not _INTEGER.fullmatch(part):
        raise SelectionError(
            f"cannot read the selection [{text}]",
            expected="an integer, a slice or ...",
            got=repr(part),
            hint=SELECTION_HINT,
        )
    return int(part)
