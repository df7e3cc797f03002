"""Attributes of an array or a group, which can be read but not changed."""

from __future__ import annotations

from typing import Any, NoReturn

from gpushard.errors import UnsupportedError


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise UnsupportedError(
        "attributes are read-only",
        hint="change them with zarr: zarr.open(store, mode='r+').attrs[name] = value;"
        " or change a copy of them: dict(attrs)",
    )


class Attributes(dict[str, Any]):
    """A dictionary that refuses changes, which nothing would store.

    Copies of it are plain dictionaries.
    """

    __slots__ = ()

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        return dict, (dict(self),)
