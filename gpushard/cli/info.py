"""`gpushard info`: what an array or a group is, and what decodes it here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from gpushard.cli.failures import failures_in_a_sentence
from gpushard.cli.limits import Limits, options_of
from gpushard.cli.output import AsJson, Debug, print_json, print_table, print_text
from gpushard.options import MIB

# Some formats keep whole documents in an attribute.
_LONGEST_ATTRIBUTE = 500


def info(
    url: Annotated[str, typer.Argument(metavar="URL", help="Array or group.")],
    advise: Annotated[
        bool,
        typer.Option("--advise", help="Say what would read better on a GPU, and why."),
    ] = False,
    limit: Limits = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Tell what an array or a group is, and what decodes it here."""
    with failures_in_a_sentence(debug=debug, as_json=as_json):
        # Imported here, because `--help` needs neither NumPy nor the reader.
        from gpushard.cli.description import describe

        facts = describe(url, options_of(limit), advise=advise)
        if as_json:
            print_json(facts)
        elif facts["node_type"] == "group":
            print_table(_group_rows(facts))
            print_table(_unread_rows(facts))
            if facts["attributes"]:
                print_text("")
                print_table(_attribute_rows(facts))
        else:
            print_table([*_array_rows(facts), *_attribute_rows(facts)])
            if advise:
                print_table(_plan_rows(facts["advice"]))
                print_table(_advice_rows(facts["advice"]))


def _group_rows(facts: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """One row for each child of a group that can be read."""
    if facts["why_not_listed"]:
        hint = f"name an array or a group in it: {facts['url'].rstrip('/')}/NAME"
        return [("a group", f"{facts['why_not_listed']}; {hint}")]
    if not (facts["arrays"] or facts["groups"]):
        return [("the group is empty",)]
    rows: list[tuple[str, ...]] = [("name", "shape", "dtype", "inner chunks", "shards")]
    for name, child in facts["arrays"].items():
        if "error" not in child:
            cells = (child["shape"], child["dtype"], child["chunks"], child["shards"])
            rows.append((name, *map(_shape_text, cells)))
    return [*rows, *((f"{name}/", "group") for name in facts["groups"])]


def _unread_rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Why the other children cannot be read; no column is as wide as these."""
    children = facts["arrays"].items()
    return [(name, child["error"]) for name, child in children if "error" in child]


def _array_rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = [("shape", _shape_text(facts["shape"]))]
    if facts["dimension_names"]:
        names = (name or "-" for name in facts["dimension_names"])
        rows.append(("dimensions", ", ".join(names)))
    rows.append(("dtype", facts["dtype"]))
    rows += _grid_rows(facts)
    rows.append(("fill value", json.dumps(facts["fill_value"])))
    rows.append(("size", f"{facts['nbytes']:,} bytes{_stored_text(facts)}"))
    why = f": {facts['device_why']}" if facts["device_why"] else ""
    return [*rows, ("device", f"{facts['device']}{why}"), *_codec_rows(facts)]


def _grid_rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    n_shards, n_stored = facts["n_shards"], facts["n_stored"]
    count = f"{n_shards:,} in the grid, "
    count += "stored ones not counted" if n_stored is None else f"{n_stored:,} stored"
    if not facts["sharding"]:
        return [("chunks", f"{_shape_text(facts['chunks'])}, {count}")]
    # The counts are of the innermost level.
    chunks = _shape_text(facts["sharding"][-1]["chunk_shape"])
    if facts["why_not_counted"] is not None:
        chunks += f", not counted: {facts['why_not_counted']}"
    else:
        chunks += f", {facts['n_stored_inner_chunks']:,} stored"
        chunks += f", {facts['n_empty_inner_chunks']:,} empty in stored shards"
    rows = [
        ("inner chunks", chunks),
        ("shards", f"{_shape_text(facts['shards'])}, {count}"),
    ]
    n_damaged = facts["n_damaged_indexes"]
    if n_damaged:
        indexes = "1 shard index is" if n_damaged == 1 else f"{n_damaged:,} indexes are"
        rows.append(("DAMAGED", f"{indexes} not readable: see gpushard verify"))
    return rows


def _stored_text(facts: Mapping[str, Any]) -> str:
    stored_nbytes = facts["stored_nbytes"]
    if stored_nbytes is None:
        return ""
    ratio = facts["nbytes"] / stored_nbytes if stored_nbytes else 0
    smaller = f", {ratio:.2f} times smaller" if ratio > 1 else ""
    return f", {stored_nbytes:,} stored{smaller}"


def _codec_rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Codecs from the outside in, in decoding order."""
    texts = [f"{name}: around the whole shard" for name in facts["object_codecs"]]
    texts += [
        f"sharding_indexed: inner chunks {_shape_text(level['chunk_shape'])}, index at"
        f" the {level['index_location']} ({', '.join(level['index_codecs'])})"
        for level in facts["sharding"]
    ]
    texts += [_codec_text(codec, facts["device"]) for codec in facts["codecs"]]
    return _labelled("codecs", texts)


def _codec_text(codec: Mapping[str, Any], device: str) -> str:
    where = {
        "host": "on the host",
        "device": f"on {device}",
        "scatter": f"on {device}, as the elements are put in place",
    }[codec["where"]]
    # Without a device there is only one place to decode.
    why = codec["where"] == "host" and device != "cpu" and codec["why"]
    return f"{codec['codec']}: {where}, {codec['library']}{f' ({why})' if why else ''}"


def _attribute_rows(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    texts = [
        f"{name}: {_in_short(value if isinstance(value, str) else json.dumps(value))}"
        for name, value in facts["attributes"].items()
    ]
    return _labelled("attributes", texts)


def _in_short(text: str) -> str:
    if len(text) <= _LONGEST_ATTRIBUTE:
        return text
    shown = text[:_LONGEST_ATTRIBUTE]
    return f"{shown} ... ({len(text):,} characters, all of them with --json)"


def _plan_rows(advice: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Present shapes and codecs, and better ones."""
    plans = {"as it is": advice["now"], "better": advice["better"]}
    if advice["command"] is None:
        del plans["better"]
    read = f"a read of {advice['read_nbytes'] / MIB:,.1f} MiB"
    head = ("on a GPU", "shards", "inner chunks", "decodes", read)
    rows: list[tuple[str, ...]] = [head]
    for label, plan in plans.items():
        shapes = (_shape_text(plan["shards"]), _shape_text(plan["chunks"]))
        rows.append((label, *shapes, plan["coding"], _cost_text(plan)))
    return rows


def _advice_rows(advice: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Why, and what makes it so."""
    reasons = _labelled("because", list(advice["reasons"]))
    basis = ", ".join(f"[{key}] {text}" for key, text in advice["basis"].items())
    command = advice["command"]
    action = ("make it so", command)
    if command is None:
        action = ("advice", "leave it as it is")
    return [*reasons, action, ("figures", basis)]


def _cost_text(plan: Mapping[str, Any]) -> str:
    """Estimated times of a read, in milliseconds."""
    on_device, on_host = (1e3 * seconds for seconds in plan["costs"])
    host = f"host {on_host:,.1f} ms [e]"
    if not plan["n_streams"]:
        return f"{host}, then copied"
    return f"{plan['n_streams']:,} streams, {on_device:,.1f} ms [e], {host}"


def _labelled(label: str, texts: Sequence[str]) -> list[tuple[str, str]]:
    """Rows with the label before the first of them."""
    return [("" if i else label, text) for i, text in enumerate(texts)]


def _shape_text(shape: Sequence[int] | None) -> str:
    """Shape or name, "-" where there is none."""
    if shape is None:
        return "-"
    return shape if isinstance(shape, str) else str(tuple(shape))
