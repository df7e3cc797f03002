"""fsspec's URLs, mappings and paths -> a zarr store over their file system."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gpushard.errors import StoreError, UnsupportedError

if TYPE_CHECKING:
    from zarr.storage import FsspecStore


def open_url(url: str, storage_options: Mapping[str, Any]) -> FsspecStore:
    """Zarr store of any URL that fsspec knows, read-only.

    Raises
    ------
    UnsupportedError
        fsspec, or its package for this scheme, is missing, or does not know the scheme.
    StoreError
        The file system cannot be opened.
    """
    first, slashes, _ = url.partition("://")
    schemes = f"{first}://" if slashes else f"{url.partition('::')[0]}::"
    try:
        return _opened(url, dict(storage_options))
    except ImportError as error:
        raise UnsupportedError(
            f"reading {schemes} URLs needs a package that is missing ({error})",
            hint="run: pip install fsspec, and fsspec's package for this scheme",
        ) from error
    except ValueError as error:
        raise UnsupportedError(
            f"fsspec cannot open {schemes} URLs ({error})",
            hint="check the URL's spelling",
        ) from error
    except Exception as error:  # file systems raise anything when they connect
        raise StoreError(
            f"cannot open {schemes} URLs: {type(error).__name__}: {error}",
            hint="check the URL, the network and storage_options",
        ) from error


def knows(scheme: str) -> bool:
    """Whether fsspec is installed and has a file system of that name."""
    try:
        from fsspec.registry import known_implementations
    except ImportError:
        return False
    return scheme in known_implementations


def as_store(target: Any) -> Any:
    """Zarr store that fsspec's ``get_mapper`` or universal_pathlib's ``UPath`` names.

    A local directory becomes its path. Any other `target` stays as it is.
    """
    if type(target).__module__ == "fsspec.mapping":
        fs, path = target.fs, target.root
    elif "upath" in {c.__module__.partition(".")[0] for c in type(target).__mro__}:
        fs, path = target.fs, target.path
    else:
        return target
    return path if _is_local(fs) else _over(fs, path.rstrip("/"))


def _is_local(fs: Any) -> bool:
    from fsspec.implementations.local import LocalFileSystem

    return type(fs) is LocalFileSystem


def safely(store: FsspecStore) -> FsspecStore:
    """`store`, reading one object at a time if its file system allows no more."""
    from gpushard.stores.one_at_a_time import one_at_a_time

    fs = one_at_a_time(store.fs)
    if fs is None or fs is store.fs:
        return store
    return type(store)(
        fs,
        path=store.path,
        read_only=store.read_only,
        allowed_exceptions=store.allowed_exceptions,
    )


def _opened(url: str, storage_options: dict[str, Any]) -> FsspecStore:
    from fsspec.core import url_to_fs
    from zarr.storage import FsspecStore

    first = url.partition("::")[0]
    if first != url and _is_cache(first.partition("://")[0]):
        return _over(*url_to_fs(url, **storage_options))
    store = FsspecStore.from_url(url, storage_options=storage_options, read_only=True)
    return safely(store)


def _is_cache(scheme: str) -> bool:
    from fsspec import get_filesystem_class
    from fsspec.implementations.cached import CachingFileSystem

    return issubclass(get_filesystem_class(scheme), CachingFileSystem)


def _over(fs: Any, path: str) -> FsspecStore:
    """Zarr store of a directory in a file system."""
    from zarr.storage import FsspecStore

    from gpushard.stores.one_at_a_time import one_at_a_time

    # A cache seems to have the asynchronous methods of what is behind it. zarr would
    # call those, past the cache, and in an event loop that is not theirs.
    alone = one_at_a_time(fs)
    if alone is None:
        return FsspecStore.from_mapper(fs.get_mapper(path))
    return FsspecStore(alone, path=path, read_only=True)
