"""`--limit`: what arrays may ask for, set on the command line."""

from __future__ import annotations

import json

import numpy as np
import pytest
import zarr
from zarr.codecs import ZstdCodec

from cli_runs import run, run_json, sentence
from gpushard.cli.limits import options_of
from gpushard.errors import OptionError
from gpushard.options import LIMITS, Options

VALUES = np.resize(np.arange(1, 252), 16384).astype("u1")


@pytest.fixture
def place(tmp_path):
    """Array of four inner chunks of 4 KiB, two a shard, in a group."""
    group = zarr.create_group(tmp_path / "g")
    made = group.create_array(
        "a", shape=(16384,), dtype="u1", shards=(8192,), chunks=(4096,),
        compressors=ZstdCodec(), fill_value=0,
    )  # fmt: skip
    made[:] = VALUES
    return tmp_path / "g" / "a"


COMMANDS = {
    "read": lambda place: ("read", place),
    "verify": lambda place: ("verify", place, "--decode"),
    "convert": lambda place: ("convert", place, place.parent / "b"),
    "bench": lambda place: ("bench", place, "--repetitions", 1),
    "info": lambda place: ("info", place),
    "map": lambda place: ("map", place),
}
OPENS = {"info": "max_index_nbytes=35", "map": "max_index_nbytes=35"}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_refusal_names_the_option_that_raises_the_limit(command, place):
    arguments = COMMANDS[command](place)
    refused = OPENS.get(command, "max_chunk_nbytes=4095")
    name = refused.partition("=")[0]
    told = run(*arguments, "--limit", refused, code=2)
    assert f"raise it with --limit {name}=SIZE" in told.stdout + told.stderr
    facts = run_json(*arguments, "--limit", refused, code=2)
    assert f"raise it with --limit {name}=SIZE" in json.dumps(facts)
    run(*arguments, "--limit", f"{name}=4KiB")


def test_a_member_of_a_group_that_may_not_be_opened_is_told_with_the_option(place):
    given = ("verify", place.parent, "--limit", "max_index_nbytes=35")
    assert "--limit max_index_nbytes=SIZE" in run(*given, code=2).stdout


def test_limits_may_be_given_together(place):
    limits = ("--limit", "max_chunk_nbytes=4kB", "--limit", "max_index_nbytes=36")
    assert "4000 bytes" in sentence(run("read", place, *limits, code=2))


@pytest.mark.parametrize(
    ("size", "nbytes"),
    [
        ("4096", 4096),
        ("12B", 12),
        ("4KiB", 4 << 10),
        ("1.5MiB", 3 << 19),
        ("4 GiB", 4 << 30),
        ("2TiB", 2 << 40),
        ("3GB", 3 * 10**9),
    ],
)
def test_a_size_has_a_unit_or_is_a_number_of_bytes(size, nbytes):
    assert options_of([f"max_chunk_nbytes={size}"]).max_chunk_nbytes == nbytes


@pytest.mark.parametrize("name", LIMITS)
def test_each_limit_that_an_error_names_can_be_set(name):
    assert getattr(options_of([f"{name}=17"]), name) == 17
    assert options_of(None) == Options()


@pytest.mark.parametrize(
    "limit",
    [
        *("max_chunk_nbytes", "max_chunk_nbytes=", "max_chunk_nbytes=4G", "4GiB"),
        *("max_chunk_nbytes=-1", "max_chunk_nbytes=0", "threads=4"),
        *("max_chunk_nbytes=1e9", "max_sharding_depth=65", "max_chunk_nbytes=x"),
        *(f"memory_limit={text}" for text in ("9" * 5000, "9" * 400 + ".0")),
    ],
)
def test_what_is_no_limit_is_refused(limit):
    with pytest.raises(OptionError, match=r"limit|cannot have this value"):
        options_of([limit])
