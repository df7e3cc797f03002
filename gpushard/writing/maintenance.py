"""Shards rewritten, and interrupted writes undone, on request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from gpushard.errors import CorruptShardError, GpushardError, UnsupportedError
from gpushard.listed import each_of, listed_coordinates
from gpushard.source import Source
from gpushard.stores.local.files import FileWriter
from gpushard.stores.local.locked_file import LockedFile
from gpushard.stores.writers import writer_of
from gpushard.writing.assign import WriteSession
from gpushard.writing.shard import Region, StoredShard
from gpushard.writing.strategies import unused_nbytes


def compact_shards(source: Source) -> int:
    """Rewrite each shard that has unused space; returns the bytes gained."""
    # Durable whatever the options say: what is copied may have been so before.
    session, n_gained = WriteSession(source, writer_of(source.store)), 0
    writer = _local_writer(session)
    for coordinate in _each_that(writer.has_traces, source):
        with _locked(source, writer, coordinate) as (file, region):
            file.drop_unfinished()
            session.recover(file, region)
            n_gained += _compacted(session, file, region)
    return n_gained


def _compacted(session: WriteSession, file: LockedFile, region: Region) -> int:
    """Rewrite a shard if it has unused space; returns the bytes gained."""
    with file.opened() as stored:
        if stored is None:
            return 0
        shard = StoredShard.parse(region, stored)
        if unused_nbytes(region, shard) == 0:
            return 0
        pieces = session.encoder.object_pieces(region, stored, None)
        file.replace(pieces)
    return len(stored) - sum(map(len, pieces or []))


class Repaired(NamedTuple):
    """Keys of the shards that were restored, and the errors of those that were not."""

    restored: list[str]
    failed: list[CorruptShardError]


def repair_shards(source: Source) -> Repaired:
    """Undo interrupted writes in place, of each shard whatever is wrong with others."""
    session, done = WriteSession(source), Repaired([], [])
    writer = _local_writer(session)
    # Others are not even locked: that would write beside each of them.
    for coordinate in _each_that(writer.has_remains, source):
        try:
            with _locked(source, writer, coordinate) as (file, region):
                file.drop_unfinished()
                if session.recover(file, region):
                    done.restored.append(source.key(coordinate))
        except CorruptShardError as error:
            done.failed.append(error)
    return done


def _local_writer(session: WriteSession) -> FileWriter:
    """Writer of an array whose shards are files."""
    source, writer = session.source, session.writer
    is_local = isinstance(writer, FileWriter)
    if not is_local or not source.layout.levels:
        raise UnsupportedError(
            "only shards in a local directory are compacted or repaired",
            got="an array without shards" if is_local else source.store.url,
        )
    return writer


def _each_that(
    is_wanted: Callable[[str], bool], source: Source
) -> Iterator[tuple[int, ...]]:
    """Coordinate of each shard whose key is wanted."""
    if source.layout.object_codecs:
        return
    listed = listed_coordinates(source)
    every = source.layout.coordinates() if listed is None else each_of(listed)
    for coordinate in every:
        if is_wanted(source.key(coordinate)):
            yield coordinate


@contextmanager
def _locked(
    source: Source, writer: FileWriter, coordinate: tuple[int, ...]
) -> Iterator[tuple[LockedFile, Region]]:
    """A shard that other writers leave alone meanwhile; its errors name it."""
    key = source.key(coordinate)
    try:
        with writer.locked(key) as file:
            yield file, Region.of_object(source, coordinate)
    except GpushardError as error:
        error.add_context(shard_key=key)
        raise
    finally:
        source.indexes.drop_shard(coordinate)
