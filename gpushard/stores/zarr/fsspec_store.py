"""fsspec's URLs, mappings and paths -> a zarr store over their file system."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from gpushard.arguments import near_names
from gpushard.errors import StoreError, UnsupportedError

if TYPE_CHECKING:
    from zarr.storage import FsspecStore


# fsspec's extras that install what a file system needs, by scheme.
_EXTRAS = {
    **dict.fromkeys(("abfs", "abfss", "az"), "abfs"),
    **dict.fromkeys(("arrow_hdfs", "hdfs"), "hdfs"),
    **dict.fromkeys(("http", "https"), "http"),
    **dict.fromkeys(("s3", "s3a"), "s3"),
    **dict.fromkeys(("sftp", "ssh"), "sftp"),
    **{
        name: name
        for name in ("adl", "dropbox", "gcs", "git", "github", "gs", "libarchive")
    },
    **{name: name for name in ("oci", "smb")},
}


def open_by_fsspec(
    url: str, storage_options: Mapping[str, Any], others: Collection[str]
) -> FsspecStore:
    """Zarr store of any URL that fsspec knows, read-only.

    Parameters
    ----------
    others
        Schemes that are read without fsspec; one of them may have been meant.

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
        return _open(url, dict(storage_options))
    except ImportError as error:
        raise _missing_package(url, schemes, others, error) from error
    except ValueError as error:
        raise UnsupportedError(
            f"fsspec cannot open {schemes} URLs ({error})",
            hint=_spelling_hint(_schemes(url), others) or "check the URL's spelling",
        ) from error
    except Exception as error:  # file systems raise anything when they connect
        raise StoreError(
            f"cannot open {schemes} URLs: {type(error).__name__}: {error}",
            hint="check the URL, the network and storage_options",
        ) from error


def fsspec_knows(scheme: str) -> bool:
    """Whether fsspec is installed and has a file system of that name."""
    try:
        from fsspec.registry import known_implementations
    except ImportError:
        return False
    return scheme in known_implementations


def _missing_package(
    url: str, schemes: str, others: Collection[str], error: ImportError
) -> UnsupportedError:
    """Error for a URL whose package is missing, or that only fsspec may know."""
    chain = _schemes(url)
    extras = sorted({_EXTRAS[scheme] for scheme in chain if scheme in _EXTRAS})
    wanted = f"'fsspec[{','.join(extras)}]'" if extras else "fsspec"
    if (error.name or "").partition(".")[0] != "fsspec":
        return UnsupportedError(
            f"reading {schemes} URLs needs a package that is missing ({error})",
            hint=f"run: pip install {wanted}" if extras else "install what it names",
        )
    meant = _spelling_hint(chain[:1], others)
    if meant is not None:
        return UnsupportedError(
            f"gpushard itself reads no {schemes} URLs, and fsspec is not installed",
            hint=f"{meant}; if fsspec knows it, run: pip install {wanted}",
        )
    return UnsupportedError(
        f"{schemes} URLs are read by fsspec, which is not installed",
        hint=f"run: pip install {wanted}",
    )


def _spelling_hint(chain: list[str], others: Collection[str]) -> str | None:
    """What the first unknown scheme of a chain may stand for; None if nothing."""
    try:
        from fsspec.registry import available_protocols

        known = {*others, *available_protocols()}
    except ImportError:
        known = {*others}
    for scheme in chain:
        if scheme not in known:
            near = near_names(scheme, known)
            meant = " or ".join(f"{name}://" for name in near)
            return f"you may have meant {meant}" if near else None
    return None


def _schemes(url: str) -> list[str]:
    """The schemes of a chain of URLs, in lower case."""
    *outer, last = url.split("::")
    named = [*outer, last] if "://" in last or not outer else outer
    return [part.partition("://")[0].lower() for part in named]


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
    return path if _is_local(fs) else _store_over(fs, path.rstrip("/"))


def _is_local(fs: Any) -> bool:
    from fsspec.implementations.local import LocalFileSystem

    return type(fs) is LocalFileSystem


def safe_store(store: FsspecStore) -> FsspecStore:
    """`store`, reading one object at a time if its file system allows no more."""
    from gpushard.stores.zarr.one_at_a_time import one_at_a_time

    fs = one_at_a_time(store.fs)
    if fs is None or fs is store.fs:
        return store
    return type(store)(
        fs,
        path=store.path,
        read_only=store.read_only,
        allowed_exceptions=store.allowed_exceptions,
    )


def lists_anew(fs: Any) -> bool:
    """Whether a file system lists all that it has; older listings are forgotten.

    A web server's pages need not link to what it has, and a cache keeps what is gone.
    """
    from fsspec.implementations.cached import CachingFileSystem

    from gpushard.stores.zarr.one_at_a_time import innermost

    inner = innermost(fs)
    if isinstance(inner, CachingFileSystem) or _is_web(inner):
        return False
    inner.invalidate_cache()
    return True


def _is_web(fs: Any) -> bool:
    # Its class cannot be imported without aiohttp.
    names = {c.__module__ for c in type(fs).__mro__}
    return "fsspec.implementations.http" in names


def _open(url: str, storage_options: dict[str, Any]) -> FsspecStore:
    from fsspec.core import url_to_fs
    from zarr.storage import FsspecStore

    first = url.partition("::")[0]
    if first != url and _is_cache(first.partition("://")[0]):
        return _store_over(*url_to_fs(url, **storage_options))
    store = FsspecStore.from_url(url, storage_options=storage_options, read_only=True)
    return safe_store(store)


def _is_cache(scheme: str) -> bool:
    from fsspec import get_filesystem_class
    from fsspec.implementations.cached import CachingFileSystem

    return issubclass(get_filesystem_class(scheme), CachingFileSystem)


def _store_over(fs: Any, path: str) -> FsspecStore:
    """Zarr store of a directory in a file system."""
    from zarr.storage import FsspecStore

    from gpushard.stores.zarr.one_at_a_time import one_at_a_time

    # A cache seems to have the asynchronous methods of what is behind it. zarr would
    # call those, past the cache, and in an event loop that is not theirs.
    alone = one_at_a_time(fs)
    if alone is None:
        return FsspecStore.from_mapper(fs.get_mapper(path))
    return FsspecStore(alone, path=path, read_only=True)
