"""The error tree, and the one sentence that each error makes of its fields."""

from __future__ import annotations

import copy
import copyreg
import pickle

import pytest

from gpushard import errors
from gpushard.errors import (
    ChecksumError,
    CorruptShardError,
    DeviceError,
    DeviceMemoryError,
    GpushardError,
    HostMemoryError,
    LimitError,
    MetadataError,
    NoSuchArrayError,
    NotFoundError,
    ObjectChangedError,
    ObjectDeletedError,
    OptionError,
    SelectionError,
    StoreError,
    UnsupportedError,
    WindowMovedError,
)

BASES = {
    MetadataError: ValueError,
    UnsupportedError: NotImplementedError,
    LimitError: UnsupportedError,
    SelectionError: IndexError,
    OptionError: ValueError,
    StoreError: OSError,
    ObjectChangedError: StoreError,
    ObjectDeletedError: ObjectChangedError,
    WindowMovedError: StoreError,
    NotFoundError: FileNotFoundError,
    NoSuchArrayError: NotFoundError,
    CorruptShardError: ValueError,
    ChecksumError: CorruptShardError,
    HostMemoryError: MemoryError,
    DeviceError: RuntimeError,
    DeviceMemoryError: MemoryError,
}
FIELDS = {
    "array_path": "ocean/salt",
    "shard_key": "ocean/salt/c/0/1",
    "inner_chunk": (3, 4),
    "codec": "zstd",
    "json_path": "codecs[0].configuration",
    "expected": "16 bytes",
    "got": "12 bytes",
    "hint": "restore the shard",
}


@pytest.mark.parametrize(("error", "base"), BASES.items())
def test_every_error_is_a_gpushard_error_and_the_builtin_of_its_kind(error, base):
    assert issubclass(error, GpushardError)
    assert issubclass(error, base)
    assert repr(error("why")) == f"{error.__name__}('why')"


def test_the_tree_drawn_at_the_top_names_every_error():
    defined = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, GpushardError)
    }
    assert defined == {"GpushardError", *(error.__name__ for error in BASES)}
    assert all(name in errors.__doc__ for name in defined)


def test_a_message_says_what_where_both_sides_and_what_to_do_in_one_sentence():
    assert str(CorruptShardError("bytes are missing", **FIELDS)) == (
        "bytes are missing (array 'ocean/salt', shard 'c/0/1', inner chunk"
        " (3, 4), codec 'zstd', at 'codecs[0].configuration'): expected 16 bytes,"
        " got 12 bytes; restore the shard."
    )


def test_a_message_without_facts_is_its_first_words_and_a_full_stop():
    assert str(StoreError("the store did not answer")) == "the store did not answer."


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"got": 3}, "no: got 3."),
        ({"expected": 3}, "no: expected 3."),
        ({"expected": 0, "got": False}, "no: expected 0, got False."),
        ({"hint": "retry"}, "no; retry."),
        ({"array_path": ""}, "no."),
        ({"inner_chunk": ()}, "no (inner chunk ())."),
        ({"inner_chunk": (0,)}, "no (inner chunk (0,))."),
        ({"array_path": "a", "node_type": "array"}, "no (array 'a')."),
        ({"array_path": "a", "node_type": "group"}, "no (group 'a')."),
        ({"array_path": "", "node_type": "group"}, "no."),
    ],
)
def test_a_message_tells_only_the_facts_there_are(fields, message):
    assert str(GpushardError("no", **fields)) == message


@pytest.mark.parametrize("error", [GpushardError, *BASES])
@pytest.mark.parametrize(
    "duplicate", [copy.copy, lambda e: pickle.loads(pickle.dumps(e))]
)
def test_a_copied_or_pickled_error_keeps_its_fields_and_its_message(error, duplicate):
    original = error("bytes are missing", **FIELDS)
    message = str(original)
    again = duplicate(original)
    assert type(again) is error
    assert again.what == "bytes are missing"
    assert {name: getattr(again, name) for name in FIELDS} == FIELDS
    assert str(again) == str(original) == message


def test_a_lack_of_memory_is_pickled_beside_tblib():
    tblib = pytest.importorskip("tblib.pickling_support", reason="distributed has it")
    before = dict(copyreg.dispatch_table)
    try:
        tblib.install()
        again = pickle.loads(pickle.dumps(HostMemoryError("no room", hint="less")))
    finally:
        copyreg.dispatch_table.clear()
        copyreg.dispatch_table.update(before)
    assert str(again) == "no room; less."


def test_a_pickled_error_keeps_its_notes():
    error = StoreError("the store did not answer")
    error.add_note("tried 3 times")
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["tried 3 times"]


def test_a_pickled_error_can_be_raised_and_caught_as_its_builtin():
    with pytest.raises(FileNotFoundError, match="no array there"):
        raise pickle.loads(pickle.dumps(NotFoundError("no array there")))


def test_added_context_fills_in_what_the_raiser_could_not_know():
    error = CorruptShardError("bytes are missing", codec="zstd")
    error.add_context(array_path="a", shard_key="a/c/0", inner_chunk=(1,), codec="gzip")
    assert (error.array_path, error.shard_key, error.inner_chunk) == (
        "a",
        "a/c/0",
        (1,),
    )
    assert error.codec == "zstd"


def test_added_context_leaves_what_is_known():
    known = {k: FIELDS[k] for k in ("array_path", "shard_key", "inner_chunk", "codec")}
    error = CorruptShardError("bytes are missing", **known)
    error.add_context(array_path="b", shard_key="b/c/9", inner_chunk=(9,), codec="lz4")
    assert {name: getattr(error, name) for name in known} == known


def test_the_root_array_and_the_chunk_of_a_0d_array_count_as_known():
    error = CorruptShardError("bytes are missing", array_path="", inner_chunk=())
    error.add_context(array_path="b", inner_chunk=(1,))
    assert (error.array_path, error.inner_chunk) == ("", ())


def test_added_context_of_a_0d_array_stays_and_is_told():
    error = CorruptShardError("bytes are missing")
    error.add_context(inner_chunk=())
    error.add_context(inner_chunk=(1,))
    assert str(error) == "bytes are missing (inner chunk ())."


@pytest.mark.parametrize(
    ("url", "path", "address"),
    [
        ("file:///", "", "file:///"),
        ("file:///", "a/b", "file:///a/b"),
        ("memory://", "a", "memory://a"),
        ("file:///x/", "/a/", "file:///x/a"),
        (None, "a", "a"),
    ],
)
def test_an_address_keeps_the_slashes_of_its_scheme(url, path, address):
    error = MetadataError("it is broken", store_url=url, array_path=path)
    assert str(error) == f"it is broken (array '{address}')."


@pytest.mark.parametrize("error", [GpushardError("no"), MemoryError()])
def test_a_block_about_a_group_says_so(error):
    with pytest.raises(GpushardError) as caught, errors.naming_group("file:///x", "g"):
        raise error
    assert caught.value.node_type == "group"
    assert "(group 'file:///x/g')" in str(caught.value)


def test_an_array_of_a_group_stays_an_array():
    with pytest.raises(GpushardError) as caught, errors.naming_group("file:///x", "g"):
        raise GpushardError("no", array_path="g/a")
    assert str(caught.value) == "no (array 'file:///x/g/a')."


def test_what_is_known_of_a_node_stays():
    with pytest.raises(GpushardError) as caught, errors.naming_group("file:///x", "g"):
        raise GpushardError("no", array_path="g", node_type="array")
    assert str(caught.value) == "no (array 'file:///x/g')."
