"""A short run of each fuzz target, and that each of them finds a planted bug."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
from dataclasses import replace
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pkgutil import walk_packages

import numpy as np
import pytest

from cuda_host.statuses import Status
from fuzz import kernels, mutations, running, sanitized, target_loops
from fuzz.guard import GuardedRoom
from gpushard import fused
from gpushard.codecs import blosc_blocks
from gpushard.codecs.base import GatheredBytes
from gpushard.converting.mark import ConversionMark
from gpushard.devices.scattering import targets as devices_target
from gpushard.formats import numcodecs_chain, v3
from gpushard.fused import boxes, choice
from gpushard.moving.watch import Watch
from gpushard.planning import index
from gpushard.source import Source
from gpushard.stores.writers import ObjectWriter
from gpushard.writing import in_place
from places import ROOT

# Inputs of the short run, chosen to take about a quarter of a second each.
N_INPUTS = {
    "metadata": 150,
    "historic": 250,
    "index": 1200,
    "streams": 1200,
    "shards": 120,
    "loops": 80,
    "device": 30,
    "writing": 100,
    "conversion": 150,
    "rolling": 30,
    "answers": 250,
    "puts": 50,
    "selections": 1200,
}
HAS_LOOPS = find_spec("numba") is not None
NO_LOOPS = "the compiled loops need numba (extra `fast`)"
pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in")


def needs(name):
    marks = []
    if name == "loops":
        marks = [pytest.mark.skipif(not HAS_LOOPS, reason=NO_LOOPS)]
    elif name in running.NETWORKED:
        has_client = find_spec("obstore") is not None
        skips = pytest.mark.skipif(not has_client, reason="needs the extra `remote`")
        marks = [pytest.mark.network, skips]
    return pytest.param(name, marks=marks)


@pytest.mark.parametrize("name", [*map(needs, running.TARGETS)])
def test_a_short_run_finds_nothing(name):
    counts = running.short_run(name, N_INPUTS[name], seed=1)
    assert counts[True] > N_INPUTS[name] // 100
    assert counts[False] > N_INPUTS[name] // 4


def test_the_plain_way_is_not_compared_with_itself(monkeypatch):
    monkeypatch.setattr(choice, "_loaded", [None])  # as without numba
    with pytest.raises(AssertionError, match="no compiled loops"):
        target_loops._load_loops.__wrapped__()


@pytest.mark.parametrize("name", [*map(needs, running.TARGETS)])
def test_the_seeds_of_a_target_differ(name):
    seeds = running.load(name).seeds()
    assert len(set(seeds)) == len(seeds) > 10


# ---- planted bugs


def looks_at_a_filter_too_early(monkeypatch):
    def native(spec):
        return replace(spec, configuration={"astype": spec.configuration["astype"]})

    monkeypatch.setattr(numcodecs_chain, "_native", native)


def leaks_a_key_error(monkeypatch):
    def attributes(document):
        return dict(document)["attributes"]

    monkeypatch.setattr(v3, "_attributes", attributes)


def lets_a_sum_wrap(monkeypatch):
    def parse_index(entries, *, base=0, nbytes):
        good = index.parse_index(entries, base=base, nbytes=nbytes)
        with np.errstate(over="ignore"):
            end = entries[:, 0] + entries[:, 1]
        fits = end <= np.uint64(2**63 - 1 - base if nbytes is None else nbytes)
        good.state[fits & (good.state == index.CORRUPT)] = index.PRESENT
        return good

    monkeypatch.setattr(running.load("index"), "parse_index", parse_index)


def forgets_the_size(monkeypatch):
    monkeypatch.setattr(GatheredBytes, "all", lambda self: self._memory[: self._nbytes])


def turns_inner_chunks_around(monkeypatch):
    good = Source.decode
    monkeypatch.setattr(
        Source, "decode", lambda self, data, *how: good(self, data, *how)[::-1]
    )


def places_beside(monkeypatch):
    good = boxes.cut

    def cut(landings, strides, block, rows):
        made = good(landings, strides, block, rows)
        made[0][:, boxes.OFFSET] ^= 4
        return made

    monkeypatch.setattr("gpushard.fused.placer.cut", cut)


def scatters_an_axis_onto_one_place(monkeypatch):
    good = devices_target.grid_strides
    monkeypatch.setattr(
        devices_target, "grid_strides", lambda *args: (*good(*args)[:-1], 0)
    )


def undoes_all_but_the_first(monkeypatch):
    good = in_place._undo

    def undo(file, note):
        left = note._replace(
            offset=note.offset[1:],
            n_bytes=note.n_bytes[1:],
            first=note.first + int(note.n_bytes[:1].sum()),
        )
        good(file, left)

    monkeypatch.setattr(in_place, "_undo", undo)


def takes_all_shards_for_finished(monkeypatch):
    def take_over(self, _found):
        self.done[:] = True
        self.is_resumed = True

    monkeypatch.setattr(ConversionMark, "take_over", take_over)


def takes_all_that_is_missing_for_unwritten(monkeypatch):
    monkeypatch.setattr(Watch, "_confirm", lambda _self, _keys: None)


def believes_in_any_version(monkeypatch):
    monkeypatch.setattr("gpushard.stores.ranged.is_other_version", lambda *_: False)


def puts_without_a_condition(monkeypatch):
    def version(self, key, e_tag):
        # The server is asked before whether it keeps to conditions, with a tag of "0".
        return {"e_tag": e_tag} if e_tag == '"0"' else "overwrite"

    monkeypatch.setattr(ObjectWriter, "_put_condition", version)


def reads_a_minus_as_a_plus(monkeypatch):
    target = running.load("selections")
    good = target.parse_selection
    monkeypatch.setattr(
        target, "parse_selection", lambda text: good(text.replace("-2", "2"))
    )


PLANTED = {
    "metadata": leaks_a_key_error,
    "historic": looks_at_a_filter_too_early,
    "index": lets_a_sum_wrap,
    "streams": forgets_the_size,
    "shards": turns_inner_chunks_around,
    "loops": places_beside,
    "device": scatters_an_axis_onto_one_place,
    "writing": undoes_all_but_the_first,
    "conversion": takes_all_shards_for_finished,
    "rolling": takes_all_that_is_missing_for_unwritten,
    "answers": believes_in_any_version,
    "puts": puts_without_a_condition,
    "selections": reads_a_minus_as_a_plus,
}


@pytest.mark.parametrize("name", [*map(needs, PLANTED)])
def test_a_planted_bug_is_found_with_the_input_that_shows_it(name, monkeypatch):
    PLANTED[name](monkeypatch)
    finding = (AssertionError, KeyError, TypeError)
    with pytest.raises(finding) as caught:
        running.short_run(name, N_INPUTS[name], seed=1)
    (note,) = caught.value.__notes__
    assert f"target {name}, input " in note
    with pytest.raises(finding):
        running.load(name).check(bytes.fromhex(note.rpartition(" ")[2]))


def test_a_wrong_block_of_a_frame_is_found(monkeypatch):
    good = blosc_blocks.decode_blocks

    def decode_blocks(*args):
        return bytes(good(*args))[::-1]

    monkeypatch.setattr(blosc_blocks, "decode_blocks", decode_blocks)
    with pytest.raises(AssertionError, match="block"):
        running.short_run("streams", 5000, seed=1)


# ---- the machinery


def test_a_read_beyond_guarded_bytes_ends_the_process():
    script = (
        "import ctypes; from fuzz.guard import GuardedRoom;"
        "a = GuardedRoom(100).hold(b'abc', at_end={});"
        "print(ctypes.string_at(a.ctypes.data, 3));"
        "print(ctypes.string_at(a.ctypes.data + {}, 1))"
    )
    for at_end, beyond in ((True, 3), (False, -1)):
        done = subprocess.run(
            [sys.executable, "-c", script.format(at_end, beyond)],
            cwd=ROOT / "tests",
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout.strip() in ("b'abc'", "")
        assert done.returncode == -11


def test_guarded_bytes_are_those_given():
    room = GuardedRoom(10)
    for data in (b"", b"abc", bytes(range(200))):
        for at_end in (True, False):
            assert bytes(room.hold(data, at_end=at_end)) == data


def test_mutations_are_the_same_for_the_same_seed():
    text = b'{"a":[1,{"b":2}],"c":"d"}'
    donors = mutations.donors_of([{"a": [3], "c": None}])
    made = [
        (
            mutations.damaged(text, random.Random(k)),
            mutations.damaged_document(text, random.Random(k), donors),
        )
        for k in (*range(50), *range(50))
    ]
    assert made[:50] == made[50:]
    assert len(set(made)) > 40
    assert mutations.damaged_document(b"{", random.Random(1), donors) is None


def test_no_compiled_loop_is_instrumented():
    dispatcher = pytest.importorskip("numba.core.dispatcher", reason="needs numba")
    compiled = {
        value.py_func.__module__
        for found in walk_packages(fused.__path__, "gpushard.fused.")
        for value in vars(import_module(found.name)).values()
        if isinstance(value, dispatcher.Dispatcher)
    }
    assert "gpushard.fused.compiled.copies" in compiled
    assert compiled <= set(running.compiled_modules())


@pytest.mark.skipif(not find_spec("atheris"), reason="needs atheris (extra `fuzz`)")
def test_the_command_runs_a_target_under_atheris(tmp_path):
    command = [sys.executable, "tests/fuzz", "index", "--runs", "3000"]
    # It takes atheris ten seconds to count the branches of all modules.
    command += ["--within", "gpushard.planning.index"]
    places = ["--corpus", str(tmp_path / "corpus"), "--findings", str(tmp_path)]
    done = subprocess.run(
        [*command, *places], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "3000 inputs: " in done.stderr
    assert "Instrumenting gpushard.planning.index" in done.stderr
    assert not list(tmp_path.glob("crash-*"))


def test_the_kernels_parsers_hold_under_sanitizers():
    found, n_kept = kernels.explored(50_000, seed=1)
    assert sum(found.values()) == 50_000
    for status in (Status.OK, Status.FORMAT, Status.SIZE, Status.HOST):
        assert found[status] > 1000
    # The seeds alone do not meet every branch: coverage is what keeps inputs.
    assert n_kept > 100


# A size that the index does not give: the kernels read what is nobody's.
A_BYTE_TOO_MANY = """
from gpushard.device_reading import batch
decode = batch._decode
def decode_more(lane, chain, targets, rows, encoded):
    more = encoded._replace(nbytes=encoded.nbytes + 1)
    return decode(lane, chain, targets, rows, more)
batch._decode = decode_more
"""


@cache
def runs_under_sanitizers():
    """How a run ends that should find nothing, and one with a bug.

    To start such a process takes longer than the runs.
    """
    return sanitized.explored([(100, 1, ""), (20, 1, A_BYTE_TOO_MANY)])


def test_damaged_indexes_meet_kernels_under_sanitizers():
    found = runs_under_sanitizers()[0]
    assert found.status == 0, found.said
    accepted, refused = sanitized.counts_in(found)
    assert accepted + refused == 100
    assert min(accepted, refused) > 20


def test_a_byte_too_many_is_seen_under_sanitizers():
    found = runs_under_sanitizers()[1]
    assert found.status == -signal.SIGABRT
    assert "heap-buffer-overflow" in found.said
    assert "gs_" in found.said


def number(text):
    return int(text.replace(",", ""))


def test_the_documented_counts_of_inputs_add_up():
    page = (ROOT / "docs/fuzzing.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([\d,]+) \| ([^|]+) \|", page, re.MULTILINE)
    for name, inputs, of_which in rows:
        if "," in of_which and name != "kernels":
            parts = re.findall(r"[\d,]*\d", of_which)
            assert sum(map(number, parts)) == number(inputs), (name, inputs)
    counts = [(name, number(inputs)) for name, inputs, _ in rows]
    total = sum(n for _, n in counts)
    of_python = sum(n for name, n in counts if name != "kernels")
    assert f"{total:,} inputs, of which {of_python:,} are for Python" in page
    reliability = (ROOT / "docs/reliability.md").read_text()
    assert f"| inputs tried by fuzzing | {total:,} in finished runs" in reliability
