"""`create_array`, `compact` and `repair`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from gpushard.arguments import flag, instance
from gpushard.array import Array, open_array
from gpushard.errors import OptionError, StoreError, UnsupportedError, naming
from gpushard.formats.new_document import ArrayArguments, check_names
from gpushard.options import DEFAULT, Options
from gpushard.source import Source
from gpushard.stores.base import Store
from gpushard.stores.local.store import LocalStore
from gpushard.stores.resolve import (
    FOLDED_URL_HINT,
    is_folded_url,
    local_path_of,
    resolve,
)
from gpushard.write_options import WriteStrategy
from gpushard.writing.assign import WriteSession
from gpushard.writing.blueprint import ArrayFormat, blueprint
from gpushard.writing.maintenance import compact_shards, repair_shards

if TYPE_CHECKING:
    from gpushard.devices.base import Device
    from gpushard.stores.resolve import Target


def create_array(  # noqa: PLR0913 - two by position, the rest by name
    store: Target,
    path: str = "",
    *,
    format: ArrayFormat = "v3",
    overwrite: bool = False,
    write_strategy: WriteStrategy | None = None,
    device: str | Device = "auto",
    storage_options: Mapping[str, Any] | None = None,
    options: Options = DEFAULT,
    **array: Unpack[ArrayArguments],
) -> Array:
    """Create an array of the fill value at `path` of a store, in groups if it is deep.

    Parameters
    ----------
    store, path, device, storage_options, options
        As for `open_array`. A local directory need not exist.
    format
        "v3", or one of the two historic shard formats, "v3-draft-transformer" and
        "v2-prototype-ii", whose codecs are numcodecs' (docs/historic-formats.md).
    overwrite
        Whether to delete everything at `path` first.
    write_strategy
        Used instead of the one in `options`; not stored.
    **array
        shape, dtype, chunks, shards, compressors and more: `ArrayArguments`.

    Raises
    ------
    OptionError
        There is an array or group at `path` already, an array above it, or a hierarchy
        of the draft around it; zarr refuses an argument; or the write strategy does not
        suit the array.
    UnsupportedError
        gpushard cannot read or write such an array, or cannot write to the store.
    StoreError
        The store failed.

    Examples
    --------
    >>> a = gpushard.create_array(
    ...     "new.zarr", shape=(100, 100), dtype="f4", chunks=(10, 10), shards=(50, 50)
    ... )
    >>> a[:50] = 1.5
    """
    options = _with_strategy(options, write_strategy)
    with naming(str(store), path):
        check_names(array, create_array, "create_array")
        overwrite = flag(overwrite, "overwrite")
        # A store that cannot be written is refused before anything is made.
        plan = blueprint(format, array, instance(path, "path", str).strip("/"), options)
        with opened_or_made(store, path, options, storage_options) as (opened, place):
            if place != plan.layout.path:
                plan = blueprint(format, array, place, options)
            WriteSession(Source.prepare(plan.layout, opened, options))
            plan.make(opened, overwrite=overwrite)
    return open_array(
        store, path, device=device, storage_options=storage_options, options=options
    )


def _with_strategy(options: Options, strategy: WriteStrategy | None) -> Options:
    options = instance(options, "options", Options)
    if strategy is None:
        return options
    return options.but(write=replace(options.write, strategy=strategy))


def compact(array: Array) -> int:
    """Write each shard of `array` with unused space anew; returns the bytes gained.

    Inner chunks are copied as stored bytes; each shard is replaced in one step.

    Raises
    ------
    UnsupportedError
        The array is not in a local directory, or has no shards.
    CorruptShardError
        A shard is damaged; those before it are compacted.
    """
    array = instance(array, "array", Array)
    with naming(array.source.store, array.path):
        return compact_shards(array.source)


def repair(array: Array) -> list[str]:
    """Undo interrupted writes in place; returns the keys of the restored shards.

    Each shard is restored to its last published state. A write to such a shard does the
    same first.

    Raises
    ------
    UnsupportedError
        The array is not in a local directory, or has no shards.
    CorruptShardError
        What an interrupted write has noted is damaged; all other shards are restored.
    """
    array = instance(array, "array", Array)
    with naming(array.source.store, array.path):
        done = repair_shards(array.source)
        if done.failed:
            raise done.failed[0]
    return done.restored


@contextmanager
def opened_or_made(
    store: Target,
    path: str,
    options: Options,
    storage_options: Mapping[str, Any] | None,
) -> Iterator[tuple[Store, str]]:
    """What `resolve` gives, but a missing local directory is made.

    If the block fails, the directories that were made and are still empty are removed.
    Others who have just resolved such a directory are refused when they write to it.
    """
    made: list[Path] = []
    try:
        local = local_path_of(store)
        if local is not None:
            if is_folded_url(local) and not Path(local).exists():
                raise OptionError(
                    "a path is not where a URL leads",
                    got=repr(local),
                    hint=FOLDED_URL_HINT,
                )
            _refuse_zip(Path(local))
            _make(local, made)
        opened, place = resolve(store, path, options, storage_options)
        if isinstance(opened, LocalStore):
            # zarr makes the directory of its local store only when it first writes.
            _make(opened.root, made)
        yield opened, place
    except BaseException:
        for directory in made:
            with suppress(OSError, ValueError):
                directory.rmdir()
        raise


def _refuse_zip(path: Path) -> None:
    """Refuse the path of a zip file, or of one that is to be made, or a path in it."""
    is_new_zip = path.suffix.lower() == ".zip" and not path.exists()
    outer = (place for place in (path, *path.parents) if place.suffix.lower() == ".zip")
    if is_new_zip or any(place.is_file() for place in outer):
        raise UnsupportedError(
            "the path of a zip file can only be read",
            got=repr(str(path)),
            hint="write to a directory and pack that, or to a ZipStore of zarr",
        )


def _make(directory: str, made: list[Path]) -> None:
    """Make a directory; those that it took are added to `made`, the lowest first."""
    path = Path(directory)
    try:
        made[:0] = [place for place in (path, *path.parents) if not place.exists()]
        path.mkdir(parents=True, exist_ok=True)
    except (NotADirectoryError, FileExistsError, ValueError) as error:
        why = getattr(error, "strerror", None) or error  # no path has a NUL
        raise OptionError(
            f"the directory cannot be made: {why}",
            got=repr(directory),
            hint="name a directory, or one that can be made",
        ) from error
    except OSError as error:
        raise StoreError(
            f"the directory cannot be made: {error.strerror}",
            got=repr(directory),
            hint="check the name, the rights and the room where it is to be",
        ) from error
