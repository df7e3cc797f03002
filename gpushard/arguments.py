"""Arguments of callers, checked at the entry: an `OptionError` if they are wrong.

Each function returns its argument, which later code can trust.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice
from typing import Any, TypeVar, cast

import numpy as np

from gpushard.errors import OptionError

Kind = TypeVar("Kind")

_FLAGS: tuple[type, ...] = (bool, np.bool_)
_NAMES_SHOWN = 8
# Comparing more names would keep a caller waiting who only asks whether one is there.
_NAMES_COMPARED = 1000


def instance(value: Any, name: str, kind: type[Kind]) -> Kind:
    """`value`, of the class `kind`.

    Raises
    ------
    OptionError
        It is something else.
    """
    if not isinstance(value, kind):
        module = kind.__module__.partition(".")[0].removeprefix("builtins")
        raise _wrong(name, f"a {module}.{kind.__name__}".replace(" .", " "), value)
    return value


def items(values: Any, name: str, expected: str) -> list[Any]:
    """The items of an iterable; `expected` describes them for the error.

    Raises
    ------
    OptionError
        It cannot be iterated over, or is text.
    """
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise _wrong(name, expected, values)
    return list(cast("Iterable[Any]", values))


def mapping(value: Any, name: str, expected: str) -> dict[str, Any]:
    """The items of a mapping; none for None. `expected` describes them for the error.

    Raises
    ------
    OptionError
        It is not a mapping.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _wrong(name, expected, value)
    return dict(cast("Mapping[str, Any]", value))


def integer(value: Any, name: str) -> int:
    """`value`, an integer of Python or NumPy.

    Raises
    ------
    OptionError
        It is not an integer, or it is a boolean.
    """
    try:
        if not isinstance(value, _FLAGS):  # older NumPy makes integers of its own
            return operator.index(value)
    except TypeError:
        pass
    raise _wrong(name, "an integer", value)


def whole_number(value: Any, name: str, least: int) -> int:
    """`value`, an integer of at least `least`.

    Raises
    ------
    OptionError
        It is not such an integer.
    """
    try:
        number = integer(value, name)
    except OptionError:
        number = least - 1
    if number < least:
        raise OptionError(
            f"{name}= is no number that it can be",
            expected=f"a whole number of at least {least}",
            got=repr(value),
        )
    return number


def items_by_axis(value: Any, n_axes: int = 1) -> tuple[Any, ...]:
    """Items of a list, tuple or one-dimensional array; else `value`, for each axis.

    They are not checked.
    """
    if isinstance(value, list | tuple) or getattr(value, "ndim", 0) == 1:
        return tuple(cast("Iterable[Any]", value))
    return (value,) * n_axes


def flag(value: Any, name: str, hint: str | None = None) -> bool:
    """`value`, which must be True or False: other values look like a choice.

    Raises
    ------
    OptionError
        It is neither.
    """
    if not isinstance(value, _FLAGS):
        raise OptionError(f"{name}= must be True or False", got=repr(value), hint=hint)
    return bool(value)


def likely_names(meant: str, names: Iterable[str]) -> str:
    """Up to eight of `names` as a text, those that are most like `meant` first."""
    known = sorted(islice(names, _NAMES_COMPARED))
    near = near_names(meant, known)
    shown = [*near, *(name for name in known if name not in near)]
    return ", ".join(
        [*shown[:_NAMES_SHOWN], *(["..."] if shown[_NAMES_SHOWN:] else [])]
    )


def near_names(meant: str, names: Collection[str]) -> list[str]:
    """Those of `names` that `meant` may be a misspelling of, the most likely first."""
    from difflib import get_close_matches  # only an error needs it

    return get_close_matches(meant, sorted(names))


def keywords_of(function: Callable[..., Any]) -> list[str]:
    """Names of the parameters of a function that have one."""
    from inspect import Parameter, signature

    parameters = signature(function).parameters.values()
    return [one.name for one in parameters if one.kind is not Parameter.VAR_KEYWORD]


def refuse_unknown(
    given: Iterable[str],
    names: Collection[str],
    what: str,
    hints: Mapping[str, str] | None = None,
) -> None:
    """Refuse a name that is none of `names`; say which one may have been meant.

    Parameters
    ----------
    what
        Words for the error, such as "f has no argument", before the name.
    hints
        Hints for names that others may expect to find here.

    Raises
    ------
    OptionError
        There is such a name.
    """
    unknown = min((name for name in given if name not in names), default=None)
    if unknown is None:
        return
    # A hint has room for all names, which what an error expected has not.
    hint = f"choose from {', '.join(names)}"
    if near := near_names(unknown, names):
        hint = f"you may have meant {near[0]}="
    raise OptionError(f"{what} {unknown!r}", hint=(hints or {}).get(unknown, hint))


def _wrong(name: str, expected: str, value: Any) -> OptionError:
    shown = "None" if value is None else f"{value!r} ({type(value).__name__})"
    return OptionError(f"{name} is of the wrong kind", expected=expected, got=shown)
