"""Path, URL or store object from a user -> a store, and a path in it."""

from __future__ import annotations

import errno
import os
import pickle
import re
import stat
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from gpushard.arguments import instance, mapping
from gpushard.errors import NotFoundError, OptionError, StoreError, UnsupportedError
from gpushard.options import DEFAULT, Options
from gpushard.stores.base import Store
from gpushard.stores.local.store import LocalStore

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from obstore.store import ObjectStore
    from zarr import Array, AsyncArray, AsyncGroup, Group
    from zarr.abc.store import Store as ZarrAbstractStore
    from zarr.storage import StorePath

    class _UPath(Protocol):
        """What universal_pathlib's paths have."""

        @property
        def fs(self) -> Any: ...
        @property
        def path(self) -> str: ...

    _Node = Array[Any] | Group | AsyncArray[Any] | AsyncGroup
    _Named = str | os.PathLike[str] | MutableMapping[str, Any] | _UPath
    Target = _Named | ZarrAbstractStore | StorePath | _Node | ObjectStore | Store
    """What a caller names a store by."""

# fsspec chains file systems: simplecache::s3://bucket/data.zarr, reference::refs.json
_URL = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)(?:::|://)")

_CHAIN = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*::")
_FOLDED_URL = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*):/")

FOLDED_URL_HINT = "pass a URL as text with two slashes: a Path has only one of them"

_REMOTE_SCHEMES = frozenset(
    ("http", "https", "s3", "s3a", "gs", "az", "adl", "azure", "abfs", "abfss")
)
# What the system says of a path at which there is nothing. A disk that is dying, or a
# server that is gone, says something else.
_LEADS_NOWHERE = frozenset(
    (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL)
)


def resolve(
    target: Any,
    path: str = "",
    options: Options = DEFAULT,
    storage_options: Mapping[str, Any] | None = None,
) -> tuple[Store, str]:
    """Store that `target` means, and the path of the array or group in it.

    Parameters
    ----------
    target
        A local directory or ``.zip`` file, or an array or a group in it (str, Path or
        another path object, or ``file://``); a URL
        (``http(s)://``; ``s3://``, ``gs://`` and ``az://`` through obstore; all other
        and chained URLs through fsspec); a zarr `Store`, `StorePath`, `Array` or
        `Group`; an obstore store; a mapping of fsspec (``get_mapper``) or a ``UPath``;
        or a store of gpushard.
    path
        Path below the place that `target` names; "" for that place itself.
    options
        Options for the store.
    storage_options
        For URLs only: settings of the connection, with obstore's or fsspec's names.

    Raises
    ------
    NotFoundError
        A local target does not exist, or is a file that is not a zip file.
    UnsupportedError
        The target is of an unknown kind, or needs a package that is not installed.
    StoreError
        The store refuses its settings.
    OptionError
        The target is empty text, `path` is not text, `options` is not an `Options`, or
        `storage_options` is not a mapping.
    """
    path = instance(path, "path", str).strip("/")
    instance(options, "options", Options)
    storage_options = mapping(storage_options, "storage_options", "names and values")
    if "fsspec" in sys.modules:
        from gpushard.stores.zarr.fsspec_store import as_store

        target = as_store(target)
    text = _text_of(target)
    scheme = "" if text is None else _scheme_of(text)
    if storage_options and scheme in ("", "file"):
        raise UnsupportedError(
            "storage_options belong to a URL with a server behind it",
            got=f"a {type(target).__name__}",
            hint="configure the store where you make it, or pass its URL",
        )
    if text is None:
        store, base = _resolve_object(target, options)
    else:
        store, base = _resolve_text(text, scheme, options, storage_options)
    return store, f"{base}/{path}".strip("/")


def local_path_of(target: Any) -> str | None:
    """Local path that `target` names; None if it is not text or not local."""
    text = _text_of(target)
    if text is None:
        return None
    scheme = _scheme_of(text)
    if scheme not in ("", "file"):
        return None
    return os.path.expanduser(_local_path(text) if scheme else text)


def _text_of(target: Any) -> str | None:
    """Text of a path or a URL; None of any other object."""
    if not isinstance(target, (str, os.PathLike)):
        return None
    text = str(target)
    # A path object for a URL would fetch all of it, to give the path of a copy.
    is_url = _URL.match(text) is not None
    return text if is_url or isinstance(target, str) else os.fsdecode(target)


def _resolve_object(target: Any, options: Options) -> tuple[Store, str]:
    """Store and path of an object that is neither text nor a path."""
    if isinstance(target, Store):
        return target, ""
    # Such an object can exist only if its package was imported.
    if "zarr" in sys.modules:
        import zarr
        from zarr.abc.store import Store as ZarrAbstractStore
        from zarr.storage import MemoryStore, StorePath

        if isinstance(target, dict):
            target = MemoryStore(target)
        nodes = (zarr.Array, zarr.Group, zarr.AsyncArray, zarr.AsyncGroup)
        if isinstance(target, nodes):
            target = target.store_path
        if isinstance(target, StorePath):
            return adapt(target.store, options), target.path
        if isinstance(target, ZarrAbstractStore):
            return adapt(target, options), ""
    if type(target).__module__.startswith("obstore"):
        from gpushard.stores.remote_url import store_of

        return store_of(target, options), ""
    raise UnsupportedError(
        "cannot tell which store this is",
        got=f"a {type(target).__module__}.{type(target).__qualname__}",
        hint="pass a path, a URL, a zarr Store, a zarr Array or a zarr Group",
    )


def adapt(store: ZarrAbstractStore, options: Options) -> Store:
    """Reader for a zarr store; reads its files or its obstore store directly if it can.

    Subclasses and wrappers are read through their own methods, because they exist to
    change how reads work.
    """
    from zarr import storage

    if type(store) is storage.LocalStore:
        local = LocalStore(store.root, options)
        local.is_read_only = store.read_only
        return local
    if type(store) is storage.ObjectStore:
        from gpushard.stores.remote_url import store_of

        remote = store_of(store.store, options)
        remote.is_read_only = store.read_only
        return remote
    from gpushard.stores.zarr.store import ZarrStore

    if type(store) is storage.FsspecStore:
        from gpushard.stores.zarr.fsspec_store import safe_store

        store = safe_store(store)
    return ZarrStore(store)


def _resolve_text(
    text: str,
    scheme: str,
    options: Options,
    storage_options: Mapping[str, Any] | None,
) -> tuple[Store, str]:
    """Store, and path in it, that the local path or URL `text` names."""
    if scheme in ("", "file"):
        return _resolve_local(_local_path(text) if scheme else text, options)
    if scheme in _REMOTE_SCHEMES:
        from gpushard.stores.remote_url import open_url

        return open_url(text, storage_options or {}, options), ""
    from gpushard.stores.zarr.fsspec_store import open_by_fsspec
    from gpushard.stores.zarr.store import ZarrStore

    opened = open_by_fsspec(text, storage_options or {}, _REMOTE_SCHEMES)
    return ZarrStore(opened), ""


def _scheme_of(text: str) -> str:
    found = _URL.match(text)
    scheme = found[1].lower() if found else ""
    if not scheme or "://" in text:
        return scheme
    from gpushard.stores.zarr.fsspec_store import fsspec_knows

    # Without //, it is a path like any other, unless fsspec has such a file system.
    return scheme if scheme != "file" and fsspec_knows(scheme) else ""


def _local_path(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise NotFoundError(
            f"the URL is malformed: {error}", got=repr(url), hint="check its spelling"
        ) from error
    if parts.netloc not in ("", "localhost"):
        # The URL may be meant as relative: file://data/x never names the place /x.
        raise NotFoundError(
            "a file:// URL names no other machine",
            got=repr(url),
            hint="begin an absolute path with three slashes: file:///data/x.zarr",
        )
    from urllib.request import url2pathname  # brings HTTP and TLS with it

    return url2pathname(parts.path)


def _resolve_local(path: str, options: Options) -> tuple[Store, str]:
    """Store of a local directory; or of a zip file, with the path inside it."""
    if not path:
        raise OptionError(
            "the path of the store is empty",
            hint="pass '.' for the current directory",
        )
    path = os.path.expanduser(path)
    if os.path.isdir(path):
        return LocalStore(path, options), ""
    # Not `Path.is_file`, which raises if a path is too long.
    for outer in (Path(path), *Path(path).parents):
        if outer.suffix.lower() == ".zip" and os.path.isfile(outer):
            inside = Path(path).relative_to(outer)
            return _open_zip(outer), "" if inside == Path() else inside.as_posix()
    mode = _mode_of(path)
    if mode is not None and stat.S_ISDIR(mode):
        return LocalStore(path, options), ""  # `isdir` takes every failure for a no
    if mode is not None:
        raise NotFoundError(
            f"{path!r} is a file",
            expected="the directory of a Zarr array or group, or a .zip file",
            got="a file",
            hint="name the directory that holds zarr.json",
        )
    hierarchy = _hierarchy_around(Path(path))
    if hierarchy is not None:
        inside = Path(path).relative_to(hierarchy)
        return LocalStore(hierarchy, options), inside.as_posix()
    raise NotFoundError(f"there is no directory {path!r}", hint=_hint_on(path))


def _hierarchy_around(path: Path) -> Path | None:
    """Directory of a hierarchy in the draft of Zarr v3 that `path` may be a path in.

    Its arrays and groups have documents below ``meta/root``, and no directory at their
    own path.
    """
    outer = next(filter(os.path.isdir, path.parents), None)
    if outer is None or not os.path.isdir(outer / "meta" / "root"):
        return None
    return outer if os.path.isfile(outer / "zarr.json") else None


def _mode_of(path: str) -> int | None:
    """Mode of what is at a path, or None if it leads nowhere.

    A path that may well name a directory, but does not lead there, is refused.
    """
    try:
        return os.stat(path).st_mode
    except PermissionError as error:
        raise StoreError(
            f"cannot look for {path!r}: {error.strerror}",
            hint="check the permissions of the directories above it",
        ) from error
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno not in _LEADS_NOWHERE:
            raise StoreError(
                f"cannot look for {path!r}: {error.strerror or error}",
                hint="check the disk, and what is mounted there",
            ) from error
        if os.path.islink(path):
            raise NotFoundError(
                f"the symbolic link {path!r} leads nowhere",
                hint="mount or fetch what it leads to, or correct the link",
            ) from None
        return None


def _hint_on(path: str) -> str:
    """What may be wrong with a path that leads nowhere."""
    chain = _CHAIN.match(path)
    if chain and find_spec("fsspec") is None:
        return f"to read {chain[0]} URLs, run: pip install fsspec"
    return FOLDED_URL_HINT if is_folded_url(path) else "check the path's spelling"


def is_folded_url(path: str) -> bool:
    """Whether `path` is what a `Path` makes of a URL, such as ``s3:/bucket``."""
    url = _FOLDED_URL.match(path)
    return url is not None and url[1].lower() in {"file", *_REMOTE_SCHEMES}


def _open_zip(path: Path) -> Store:
    from zarr.storage import ZipStore

    from gpushard.stores.zarr.store import ZarrStore

    return ZarrStore(ZipStore(path, mode="r", read_only=True))


def address(store: Store) -> bytes:
    """Everything that another process needs to open the same store.

    It has the store's settings, credentials included, but no open files or connections.
    A store that is in memory only (zarr's `MemoryStore`) is copied with its content.
    """
    try:
        return pickle.dumps(store)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise UnsupportedError(
            "the array lies in a store that cannot be opened by another process",
            hint="open it from a path or a URL",
        ) from error


def from_address(address: bytes) -> Store:
    """Store at `address`, which must come from a source that you trust."""
    return pickle.loads(address)
