"""Arguments of the wrong kind: an error of our own that says what was expected.

A bare `TypeError` from the depths tells a caller where we stumbled, and not over what.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import gpushard
from gpushard.rolling import RollingArray
from gpushard.transformer import ShardedStore

SHAPES: Any = {"shape": (8, 6), "chunks": (2, 3), "shards": (4, 6), "dtype": "i4"}
THING = object()
NO_TEXT = (5, None, b"x", ["a"], {}, THING, True)
NO_LIST = (5, None, 3.5, "x", b"x", THING)
NO_INTEGER = ("x", b"x", 3.5, ["a"], {}, THING, (1, "a"))
NO_OPTIONS = (5, None, {}, "x", THING)
NO_FLAG = (5, 0, None, "no", [], THING)


class Place:
    """Arrays to pass wrong arguments to, and names for new ones."""

    def __init__(self, root: Path) -> None:
        self.root = root
        zarr.create_array(root / "a", **SHAPES)[...] = 1
        zarr.create_group(root / "g").create_array("x", **SHAPES)
        (root / "plain").write_bytes(bytes(64))
        self.array = gpushard.open_array(root / "a", device="cpu")
        self.group = gpushard.open_group(root / "g", device="cpu")
        self.joined = gpushard.concat([self.array, self.array])
        self.rolling = RollingArray.create(root / "r", device="cpu", **SHAPES)
        self.chunks = ShardedStore({}, (2, 2))
        self.loader = gpushard.Loader(self.array, batch_size=2)

    def create(self, **wrong: Any) -> Any:
        return gpushard.create_array(self.root / "new", **{**SHAPES, **wrong})


VALUES = np.zeros((4, 6), "i4")
CASES: dict[str, tuple[Callable[[Place, Any], Any], tuple[Any, ...]]] = {
    "open_array(store)": (lambda p, v: gpushard.open_array(v), (5, None, THING, [])),
    "open_array(path)": (lambda p, v: gpushard.open_array(p.root, v), NO_TEXT),
    "open_array(device)": (
        lambda p, v: gpushard.open_array(p.root / "a", device=v),
        (5, None, {}, THING),
    ),
    "open_array(options)": (
        lambda p, v: gpushard.open_array(p.root / "a", options=v),
        NO_OPTIONS,
    ),
    "open_group(path)": (lambda p, v: gpushard.open_group(p.root, v), NO_TEXT),
    "open_group(use_consolidated)": (
        lambda p, v: gpushard.open_group(p.root / "g", use_consolidated=v),
        (5, "yes", [], 1),
    ),
    "open_group(options)": (
        lambda p, v: gpushard.open_group(p.root / "g", options=v),
        NO_OPTIONS,
    ),
    "group[...]": (lambda p, v: p.group[v], (5, None, [], {})),
    "hyperslab(start)": (lambda p, v: gpushard.hyperslab(v, [1]), (5, ["a"], "x")),
    "hyperslab(count)": (lambda p, v: gpushard.hyperslab([1], v), (5, [None], "x")),
    "hyperslab(stride)": (
        lambda p, v: gpushard.hyperslab([1], [1], v),
        (5, [0.5], "x"),
    ),
    "a[...]": (lambda p, v: p.array[v], ("x", b"x", 3.5, ["a"], {}, THING)),
    "a[slice]": (lambda p, v: p.array[v:], ("x", 3.5, ["a"], {}, THING)),
    "oindex": (lambda p, v: p.array.oindex[v], ("x", 3.5, None, {}, THING)),
    "vindex": (lambda p, v: p.array.vindex[v], ("x", 3.5, None, {}, 5, THING)),
    "blocks": (lambda p, v: p.array.blocks[v], ("x", 3.5, None, {}, THING)),
    "read(out)": (lambda p, v: p.array.read(out=v), (5, "x", [], {}, THING)),
    "read(dtype)": (lambda p, v: p.array.read(dtype=v), (5, "x", ["a"], THING)),
    "read(errors)": (lambda p, v: p.array.read(errors=v), (5, "x", None, {})),
    "read(memory_limit)": (
        lambda p, v: p.array.read(memory_limit=v),
        (-1, "x", [], THING, 0.5),
    ),
    "read_many": (lambda p, v: p.array.read_many(v), (5, None, "x", THING)),
    "read_many(out)": (
        lambda p, v: p.array.read_many([0, 1], out=v),
        (5, "ab", THING, [], True),
    ),
    "a[...] = value": (lambda p, v: p.array.__setitem__(..., v), ("x", {}, THING)),
    "create_array(path)": (lambda p, v: p.create(path=v), NO_TEXT),
    "create_array(shape)": (lambda p, v: p.create(shape=v), ("x", None, ["a"], 3.5)),
    "create_array(dtype)": (lambda p, v: p.create(dtype=v), ("x", None, 5, ["a"])),
    "create_array(format)": (lambda p, v: p.create(format=v), ("x", None, [], {})),
    "create_array(attributes)": (
        lambda p, v: p.create(attributes=v),
        (5, "x", ["a"], THING),
    ),
    "create_array(options)": (lambda p, v: p.create(options=v), NO_OPTIONS),
    "create_array(overwrite)": (lambda p, v: p.create(overwrite=v), NO_FLAG),
    "compact": (lambda p, v: gpushard.compact(v), (5, None, "x", THING)),
    "repair": (lambda p, v: gpushard.repair(v), (5, None, "x", THING)),
    "append_index(path)": (
        lambda p, v: gpushard.append_index(v, [0], [8]),
        (None, 3.5, [], THING),
    ),
    "append_index(offsets)": (
        lambda p, v: gpushard.append_index(p.root / "plain", v, [8]),
        ("x", None, [0.5], {}),
    ),
    "convert(src_path)": (
        lambda p, v: gpushard.convert(p.root, p.root / "c", v),
        NO_TEXT,
    ),
    "convert(dst_path)": (
        lambda p, v: gpushard.convert(p.root / "a", p.root / "c", "", v),
        NO_TEXT,
    ),
    "convert(progress)": (
        lambda p, v: gpushard.convert(p.root / "a", p.root / "c", progress=v),
        (5, "x", THING),
    ),
    "convert(options)": (
        lambda p, v: gpushard.convert(p.root / "a", p.root / "c", options=v),
        NO_OPTIONS,
    ),
    **{
        f"convert({name})": (
            lambda p, v, name=name: gpushard.convert(
                p.root / "a", p.root / name, **{name: v}
            ),
            NO_FLAG,
        )
        for name in ("overwrite", "resume", "verify")
    },
    "concat": (lambda p, v: gpushard.concat(v), (*NO_LIST, [], [5], [None])),
    "concat(axis)": (lambda p, v: gpushard.concat([p.array], axis=v), NO_INTEGER),
    "joined[...] = value": (lambda p, v: p.joined.__setitem__(0, v), (5,)),
    "joined.oindex = value": (lambda p, v: p.joined.oindex.__setitem__(0, v), (5,)),
    "joined.read_many": (lambda p, v: p.joined.read_many(v), (5, None, "x", THING)),
    "joined.read_many(out)": (
        lambda p, v: p.joined.read_many([0, 1], out=v),
        (5, "ab", THING, []),
    ),
    "Loader(arrays)": (lambda p, v: gpushard.Loader(v), (5, None, "x", [], THING)),
    "Loader(batch_size)": (
        lambda p, v: gpushard.Loader(p.array, batch_size=v),
        (0, *NO_INTEGER),
    ),
    "Loader(device)": (
        lambda p, v: gpushard.Loader(p.array, device=v),
        (5, "x", {}, THING),
    ),
    "Loader(seed)": (lambda p, v: gpushard.Loader(p.array, seed=v), NO_INTEGER),
    "Mix": (lambda p, v: gpushard.Mix(v), (*NO_LIST, [], [5])),
    "Mix(weights)": (
        lambda p, v: gpushard.Mix([p.loader], weights=v),
        (5, "x", ["a"], THING),
    ),
    "Rolling.create(origin)": (
        lambda p, v: RollingArray.create(p.root / "q", origin=v, **SHAPES),
        (None, 3.5, "x", THING, ("a", 0), (1,), (1, 2, 3)),
    ),
    "Rolling.create(tags)": (
        lambda p, v: RollingArray.create(p.root / "q", tags=v, **SHAPES),
        (5, "x", ["a"], THING),
    ),
    "Rolling.create(attributes)": (
        lambda p, v: RollingArray.create(p.root / "q", attributes=v, **SHAPES),
        (5, "x", {"origin": [0, 0]}, THING),
    ),
    "Rolling.open(path)": (lambda p, v: RollingArray.open(p.root, v), NO_TEXT),
    "rolling.oindex = value": (lambda p, v: p.rolling.oindex.__setitem__(0, v), (5,)),
    "append(values)": (lambda p, v: p.rolling.append(v), (5, None, "x", THING)),
    "append(axis)": (lambda p, v: p.rolling.append(VALUES, v), NO_INTEGER),
    "append(at)": (lambda p, v: p.rolling.append(VALUES, at=v), NO_INTEGER),
    "prepend(at)": (lambda p, v: p.rolling.prepend(VALUES, at=v), NO_INTEGER),
    "roll(keep)": (lambda p, v: p.rolling.roll(VALUES, keep=v), NO_INTEGER),
    "roll(delete)": (lambda p, v: p.rolling.roll(VALUES, delete=v), NO_FLAG),
    "drop(delete)": (lambda p, v: p.rolling.drop(0, delete=v), NO_FLAG),
    "write_shards(at)": (lambda p, v: p.rolling.write_shards(VALUES, at=v), NO_INTEGER),
    "drop": (lambda p, v: p.rolling.drop(v), (None, *NO_INTEGER)),
    "move_window": (lambda p, v: p.rolling.move_window(v, 8), (None, *NO_INTEGER)),
    "delete_shards": (lambda p, v: p.rolling.delete_shards(0, v), (None, *NO_INTEGER)),
    "at[slice]": (lambda p, v: p.rolling.at[v:v], ("x", 3.5, [1], THING)),
    "at[step]": (lambda p, v: p.rolling.at[::v], ("x", 3.5, [1], THING)),
    "ShardedStore(store)": (lambda p, v: ShardedStore(v, (2,)), (5, None, "x", THING)),
    "ShardedStore(chunks)": (lambda p, v: ShardedStore({}, v), (*NO_LIST, [0], ["a"])),
    "ShardedStore(path)": (lambda p, v: ShardedStore({}, (2,), v), NO_TEXT),
    "ShardedStore.get": (lambda p, v: p.chunks.get(v), NO_TEXT),
    "ShardedStore.get_partial_values": (
        lambda p, v: p.chunks.get_partial_values(v),
        (*NO_LIST, ["a"], [("a", 5)], [("a", ("b", 1))]),
    ),
    "ShardedStore.set(key)": (lambda p, v: p.chunks.set(v, b""), NO_TEXT),
    "ShardedStore.set(value)": (
        lambda p, v: p.chunks.set("data/root/c0/0", v),
        (5, None, "x", [1], THING),
    ),
    "ShardedStore.set_values": (lambda p, v: p.chunks.set_values(v), NO_LIST),
    "ShardedStore.set_partial_values": (
        lambda p, v: p.chunks.set_partial_values(v),
        (*NO_LIST, ["a"], [("a", "b", b"")], [("a", 0, 5)]),
    ),
    "ShardedStore.erase": (lambda p, v: p.chunks.erase(v), NO_TEXT),
    "ShardedStore.erase_values": (lambda p, v: p.chunks.erase_values(v), NO_LIST),
    "ShardedStore.erase_prefix": (lambda p, v: p.chunks.erase_prefix(v), NO_TEXT),
    "ShardedStore.list_prefix": (lambda p, v: p.chunks.list_prefix(v), NO_TEXT),
    "ShardedStore.list_dir": (lambda p, v: p.chunks.list_dir(v), NO_TEXT),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("arrays"))


@pytest.mark.parametrize("name", CASES)
def test_argument_of_the_wrong_kind_is_refused_in_words(
    place: Place, name: str
) -> None:
    call, wrong = CASES[name]
    for value in wrong:
        with pytest.raises(gpushard.GpushardError) as caught:
            call(place, value)
        assert str(caught.value).endswith("."), value


def test_refusal_says_what_was_expected_and_what_came(place: Place) -> None:
    with pytest.raises(gpushard.OptionError) as caught:
        place.array.read_many(5)  # type: ignore[arg-type]
    assert str(caught.value).startswith("selections is of the wrong kind (array '")
    assert caught.value.expected == "a list of keys as in a[key]"
    assert caught.value.got == "5 (int)"


@pytest.mark.parametrize(
    "target", ["s3://bucket/a", "http://localhost/a", "memory://a"]
)
def test_storage_options_that_are_no_mapping_are_refused(target):
    options: Any = "key=test"
    with pytest.raises(gpushard.OptionError, match="storage_options"):
        gpushard.open_array(target, storage_options=options)


TOLD: dict[str, tuple[Callable[[Place], Any], str]] = {
    "a codec by name": (
        lambda p: p.create(compressors=["zstd"]),
        r"no names of codecs.* got \['zstd'\]; pass such as zarr.codecs.ZstdCodec",
    ),
    "a sentence of zarr": (
        lambda p: p.create(shape="33"),
        r"Got 33 instead \(array",
    ),
    "a historic format without shards": (
        lambda p: p.create(format="v2-prototype-ii", shards=None),
        "needs the argument 'shards'.* got None",
    ),
    "an axis of a window": (
        lambda p: p.rolling.append(VALUES, axis=2),
        "no such axis.* expected 0 to 1, got 2",
    ),
    "an array in a mix": (
        lambda p: gpushard.Mix([p.loader, p.array]),
        "only loaders: got Array; pass objects",
    ),
    "no state": (
        lambda p: p.loader.load_state_dict({"epoch": 1}),
        r"not one of a loader: got {'epoch': 1}; pass what state_dict\(\)",
    ),
    "a negative offset": (
        lambda p: gpushard.append_index(p.root / "plain", [0, -1], [1, 1]),
        "inner chunk 1 leads out of the file.* got offset -1, nbytes 1; ",
    ),
    "a negative length": (
        lambda p: gpushard.append_index(p.root / "plain", [0, -1], [1, -2]),
        "inner chunk 1 leads out of the file.* got offset -1, nbytes -2; ",
    ),
    "no file": (
        lambda p: gpushard.append_index(p.root / "none", [0], [1]),
        "no file '.*none'; write the file first",
    ),
    "no value": (
        lambda p: p.array.__setitem__(0, None),
        "int32 holds, got Python objects such as NoneType",
    ),
    "some values missing": (
        lambda p: p.array.__setitem__(0, [1, 2, None, 4, 5, 10**30]),
        "int32 holds, got Python objects such as NoneType",
    ),
    "too large an integer": (
        lambda p: p.array.__setitem__(0, 10**30),
        f"out of the data type's range .* got {10**30} to {10**30}",
    ),
    "integers as objects": (
        lambda p: p.array.__setitem__(0, np.arange(6).astype(object)),
        "got Python objects such as int; convert them first",
    ),
    "an array of its path": (
        lambda p: gpushard.Array(str(p.root / "a")),
        "got a str; open it with gpushard.open_array",
    ),
    "a flag": (
        lambda p: gpushard.open_group(p.root / "g", use_consolidated="x"),
        "expected a bool, got 'x'",
    ),
}


@pytest.mark.parametrize("name", TOLD)
def test_refusal_says_what_came_and_what_to_do(place: Place, name: str) -> None:
    call, told = TOLD[name]
    with pytest.raises(gpushard.GpushardError, match=told) as caught:
        call(place)
    assert str(caught.value).endswith(".")
    assert ".." not in str(caught.value)
