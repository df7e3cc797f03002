"""Shards rewritten, and interrupted writes undone, on request."""

from __future__ import annotations

from collections.abc import Iterator

from gpushard.errors import GpushardError, UnsupportedError
from gpushard.source import Source
from gpushard.stores.files import FileWriter, LockedFile
from gpushard.writing.assign import WriteSession
from gpushard.writing.shard import Region, StoredShard
from gpushard.writing.strategies import unused_nbytes


def compact_shards(source: Source) -> int:
    """Rewrite each shard that has unused space; returns the bytes gained."""
    session, n_gained = WriteSession(source), 0
    for file, region in _files(session):
        session.recover(file, region)
        with file.opened() as stored:
            if stored is None:
                continue
            shard = StoredShard.parse(region, stored)
            if unused_nbytes(region, shard) == 0:
                continue
            pieces = session.encoder.object_pieces(region, stored, None)
            file.replace(pieces)
        n_gained += len(stored) - sum(map(len, pieces or []))
    return n_gained


def repair_shards(source: Source) -> list[str]:
    """Undo interrupted writes in place; returns the keys of restored shards."""
    session = WriteSession(source)
    return [
        source.key(region.coordinate)
        for file, region in _files(session)
        if session.recover(file, region)
    ]


def _files(session: WriteSession) -> Iterator[tuple[LockedFile, Region]]:
    """Each shard that exists or existed, locked against other writers."""
    source, writer = session.source, session.writer
    is_local = isinstance(writer, FileWriter)
    if not is_local or not source.layout.levels:
        raise UnsupportedError(
            "only shards in a local directory are compacted or repaired",
            got="an array without shards" if is_local else source.store.url,
        )
    if source.layout.object_codecs:
        return
    for coordinate in source.layout.coordinates():
        key = source.key(coordinate)
        if not writer.has_traces(key):
            continue
        try:
            with writer.locked(key) as file:
                yield file, Region.of_object(source, coordinate)
        except GpushardError as error:
            error.add_context(shard_key=key)
            raise
        finally:
            source.indexes.drop_shard(coordinate)
