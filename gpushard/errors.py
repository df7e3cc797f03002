"""Every exception that gpushard raises on purpose.

    GpushardError
    |-- MetadataError(ValueError)            the array's metadata is wrong
    |-- UnsupportedError(NotImplementedError) valid, but gpushard cannot read it
    |   `-- LimitError                       larger than the options allow
    |-- SelectionError(IndexError)           the index expression does not fit the array
    |-- OptionError(ValueError)              a knob has no possible value
    |-- StoreError(OSError)                  the store failed to answer
    |   |-- ObjectChangedError               an object was replaced while it was read
    |   |   `-- ObjectDeletedError           it was deleted
    |   `-- WindowMovedError                 a rolling array has left what was asked for
    |-- NotFoundError(FileNotFoundError)     no array, group or store there
    |   `-- NoSuchArrayError(KeyError)       no array of that name in the group
    |-- CorruptShardError(ValueError)        stored bytes contradict the metadata
    |   `-- ChecksumError                    stored bytes contradict their checksum
    |-- HostMemoryError(MemoryError)         the host has not enough memory
    `-- DeviceError(RuntimeError)            a device failed
        `-- DeviceMemoryError(MemoryError)   it has not enough memory

    DamageWarning(UserWarning)             damaged inner chunks were replaced, as asked

Each message is one sentence that says what is wrong, where, what was expected and got,
and what to do. Programs find the same facts in the exception's fields.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Literal, Protocol

# Characters of one fact that a message shows; the fields hold all of it.
_LONGEST_FACT = 200

_NodeType = Literal["array", "group"]


class GpushardError(Exception):
    """Root of the tree.

    Parameters
    ----------
    what
        What went wrong, without where.
    store_url, array_path, shard_key, inner_chunk, codec, json_path
        Where, as far as it is known. `inner_chunk` is the coordinate of the inner
        chunk in the array's grid of inner chunks; `json_path` points into the
        metadata document.
    node_type
        What is at `array_path`, if known: an array, or a group.
    expected, got
        The two sides of a contradiction.
    hint
        What the reader of the message can do.

    Examples
    --------
    >>> try:
    ...     gpushard.open_array("demo.zarr/u")[:, 3]
    ... except gpushard.GpushardError as error:
    ...     what, where = error.what, error.array_path
    >>> what
    'index 3 is out of bounds for axis 1 with 3 elements'
    """

    def __init__(
        self,
        what: str,
        *,
        store_url: str | None = None,
        array_path: str | None = None,
        shard_key: str | None = None,
        inner_chunk: tuple[int, ...] | None = None,
        codec: str | None = None,
        json_path: str | None = None,
        node_type: _NodeType | None = None,
        expected: Any = None,
        got: Any = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.store_url = store_url
        self.array_path = array_path
        self.shard_key = shard_key
        self.inner_chunk = inner_chunk
        self.codec = codec
        self.json_path = json_path
        self.node_type = node_type
        self.expected = expected
        self.got = got
        self.hint = hint

    def add_context(
        self,
        *,
        store_url: str | None = None,
        array_path: str | None = None,
        shard_key: str | None = None,
        inner_chunk: tuple[int, ...] | None = None,
        codec: str | None = None,
        node_type: _NodeType | None = None,
    ) -> None:
        """Fill in fields that are not known yet; known fields stay."""
        # An array of a group is no group.
        if self.node_type is None and self.array_path in (None, array_path):
            self.node_type = node_type
        # "" is the path of the root and () the coordinate in a 0-d array: both known.
        places = (
            ("store_url", store_url),
            ("array_path", array_path),
            ("shard_key", shard_key),
            ("inner_chunk", inner_chunk),
            ("codec", codec),
        )
        for name, place in places:
            if getattr(self, name) is None:
                setattr(self, name, place)

    def __str__(self) -> str:
        where = [
            f"{label} {_shortened(repr(value))}"
            for label, value in (
                (self.node_type or "array", self._address),
                ("shard", self._shard),
                ("inner chunk", self.inner_chunk),
                ("codec", self.codec),
                ("at", self.json_path),
            )
            if value is not None and value != ""
        ]
        text = self.what
        if where:
            text += f" ({', '.join(where)})"
        sides = (("expected", self.expected), ("got", self.got))
        told = [
            f"{label} {_shortened(value)}"
            for label, value in sides
            if value is not None
        ]
        if told:
            text += f": {', '.join(told)}"
        return f"{text}; {self.hint}." if self.hint else f"{text}."

    @property
    def _address(self) -> str:
        """Store and path of the array, or what is known of them."""
        # If the error is a wrong argument, this may be a value of any type.
        whole, path = self.store_url or "", str(self.array_path or "").strip("/")
        url = whole.rstrip("/")
        if url.endswith(":"):  # the slashes belong to the scheme: file:///
            return whole + path
        return "/".join(part for part in (url, path) if part)

    @property
    def _shard(self) -> str | None:
        """Key of the shard from the array on, so that both together are its place."""
        path = str(self.array_path or "").strip("/")
        return self.shard_key and self.shard_key.removeprefix(f"{path}/")

    # Python would do the same. But tblib, which distributed loads, has its own way for
    # exceptions without one, and cannot make a `MemoryError`.
    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.__dict__)


class _Addressed(Protocol):
    @property
    def url(self) -> str: ...


class naming:  # noqa: N801 - reads like the function that it is to its callers
    """Add the array at `array_path` of a store or address to errors of the block.

    Any other `MemoryError` of the block becomes a `HostMemoryError`. `on_damage` is
    called with a `CorruptShardError`, before that leaves the block.

    This is a class because three of these surround every read, and a context manager
    made of a generator takes three times as long.
    """

    __slots__ = ("_array_path", "_on_damage", "_store")
    _node_type: _NodeType | None = None

    def __init__(
        self,
        store: _Addressed | str,
        array_path: str,
        on_damage: Callable[[CorruptShardError], None] | None = None,
    ) -> None:
        self._store = store
        self._array_path = array_path
        self._on_damage = on_damage

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> Literal[False]:
        if error is None:
            return False
        if isinstance(error, GpushardError):
            error.add_context(
                store_url=self._url,
                array_path=self._array_path,
                node_type=self._node_type,
            )
            if self._on_damage is not None and isinstance(error, CorruptShardError):
                self._on_damage(error)
        elif isinstance(error, MemoryError):
            reason = f": {error}" if str(error) else ""
            raise HostMemoryError(
                f"the host has not enough memory{reason}",
                store_url=self._url,
                array_path=self._array_path,
                node_type=self._node_type,
                hint="select less at a time; inner chunks are decoded one a thread",
            ) from error
        return False

    @property
    def _url(self) -> str:
        return self._store if isinstance(self._store, str) else self._store.url


class naming_group(naming):  # noqa: N801 - as above
    """Add the group at `array_path`, and do otherwise as `naming`."""

    __slots__ = ()
    _node_type = "group"


def _shortened(value: Any) -> str:
    """Text of a fact, shortened: names in foreign metadata may have any length."""
    text = str(value)
    return text if len(text) <= _LONGEST_FACT else f"{text[:_LONGEST_FACT]}..."


def _rebuild(cls: type[GpushardError], fields: dict[str, Any]) -> GpushardError:
    # Notes are kept among the fields, so they are put into the dict, not passed as
    # parameters.
    error = cls(fields["what"])
    error.__dict__.update(fields)
    return error


class MetadataError(GpushardError, ValueError):
    """The metadata document is malformed or contradicts itself."""


class UnsupportedError(GpushardError, NotImplementedError):
    """The array is valid but uses something that gpushard does not read.

    This is the only error after which gpushard takes another path. zarr's codec
    pipeline does so after an `ObjectDeletedError` too.
    """


class LimitError(UnsupportedError):
    """The array is valid but asks for more than the options allow.

    The message names the option to raise.
    """


class SelectionError(GpushardError, IndexError):
    """The index expression does not fit the array."""


class OptionError(GpushardError, ValueError):
    """An option, or an argument that says how to read, has an impossible value."""


class StoreError(GpushardError, OSError):
    """The store failed to answer, or gave an answer that does not match the request."""


class ObjectChangedError(StoreError):
    """A stored object was replaced between two reads that belong together."""


class ObjectDeletedError(ObjectChangedError):
    """A stored object was deleted between two reads that belong together."""


class WindowMovedError(StoreError):
    """A rolling array has moved on, and the requested part is gone or elsewhere."""


class NotFoundError(GpushardError, FileNotFoundError):
    """There is no array, group or store at the given place."""


class NoSuchArrayError(NotFoundError, KeyError):
    """A group has no array of the given name."""


class CorruptShardError(GpushardError, ValueError):
    """Stored bytes contradict the metadata, the shard index or themselves.

    Attributes
    ----------
    limit_nbytes
        The bound that decoded bytes exceed, if that is what is wrong; otherwise None.
    """

    limit_nbytes: int | None = None


class ChecksumError(CorruptShardError):
    """Stored bytes contradict their checksum."""


class HostMemoryError(GpushardError, MemoryError):
    """The host has not enough memory."""


class DeviceError(GpushardError, RuntimeError):
    """A device failed."""


class DeviceMemoryError(DeviceError, MemoryError):
    """A device has not enough memory; what it did before is not affected."""


class DamageWarning(UserWarning):
    """Damaged inner chunks were replaced by the fill value, as the caller asked."""
