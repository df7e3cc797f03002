"""`gpushard doctor`: what is installed on this machine, and what a read would use."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gpushard.cli.failures import failures_in_a_sentence
from gpushard.cli.output import AsJson, Debug, print_json, print_table, print_text


def doctor(
    place: Annotated[
        Path,
        typer.Argument(
            metavar="[PATH]",
            exists=True,
            help="Where data lie: tells whether its file system suits a GPU.",
            show_default=False,
        ),
    ] = Path(),
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Measure how fast the GPU and the host decode, and keep it for reads.",
        ),
    ] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Tell what is installed, which device reads take, and what to do."""
    with failures_in_a_sentence(debug=debug, as_json=as_json):
        from gpushard.cli.diagnosis import diagnose

        if measure:
            from gpushard.cli.measuring import measure_and_keep

            measure_and_keep()
        facts = diagnose(place)
        if as_json:
            print_json(facts)
            return
        print_table(_machine_rows(facts))
        for title, rows in (
            ("on the CPU", _library_rows(facts)),
            ("on a GPU", _gpu_rows(facts["gpu"])),
            ("decoded bytes a second", _rate_rows(facts["rates"])),
            ("codecs", _codec_rows(facts)),
            ("to do", [("-", text) for text in facts["advice"]]),
            ("there is also", [("-", text) for text in facts["extras"]]),
        ):
            if rows:
                print_text("", title)
                print_table([("", *row) for row in rows])


def _machine_rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("gpushard", facts["gpushard"]),
        ("python", facts["python"]),
        ("platform", facts["platform"]),
        ("device", f"{facts['device']}: {facts['why']}"),
        ("threads", str(facts["threads"])),
    ]


def _library_rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    groups = {
        "decoding": facts["library"],
        "compiler": facts["compilers"],
        "optional": facts["optional"],
    }
    rows = [
        (label, ", ".join(f"{name} {v or '(missing)'}" for name, v in found.items()))
        for label, found in groups.items()
        if found
    ]
    folder = facts["loops are kept in"] or "no folder"
    if not facts["loops may run"]:
        return [*rows, ("loops", "may not run here")]
    if facts["loops are shipped"]:
        return [*rows, ("loops", "come with the package")]
    if facts["loops are kept in"] and not facts["loops are compiled"]:
        folder = f"{folder}, not compiled yet: a process that reads 64 MiB begins it"
    return [*rows, ("loops kept in", folder)]


def _gpu_rows(gpu: dict[str, Any]) -> list[tuple[str, str]]:
    nvcomp, gds = gpu["nvcomp"], gpu["gds"]
    version = f"{nvcomp['version']}, CUDA {nvcomp['cuda']}, {nvcomp['path']}"
    state = "active" if gds["is_active"] else f"not active: {gds['why']}"
    known = {"cupy", "nvcomp", "kvikio", "gds", "driver", "driver_version", "flavours"}
    return [
        ("driver", gpu["driver"]),
        *((name, text) for name, text in gpu.items() if name not in known),
        ("cupy", gpu["cupy"] or "not installed"),
        ("nvcomp", version if nvcomp["version"] else nvcomp["why"].rstrip(".")),
        ("kvikio", gpu["kvikio"] or "not installed"),
        ("gds", state),
        ("files at", f"{gds['mount']}, {gds['file_system']}"),
    ]


def _rate_rows(rates: dict[str, dict[str, float]]) -> list[tuple[str, ...]]:
    head = ("", "a GPU", "one stream there", "a thread here")
    rows = [
        (coding, *(f"{rate[of] / 1e9:.3g} GB" for of in ("device", "stream", "host")))
        for coding, rate in rates.items()
    ]
    return [head, *rows] if rows else []


def _codec_rows(facts: dict[str, Any]) -> list[tuple[str, ...]]:
    head = ("", "a GPU", "the CPU")
    rows: dict[tuple[str, ...], list[str]] = {}
    for row in facts["codecs"]:
        gpu = row["gpu"] or ("by the CPU" if row["cpu"] else "-")
        short = row["codec"].removeprefix("numcodecs.")
        cells = (short, gpu, row["cpu"] or f"no: {row['why']}")
        rows.setdefault(cells, []).append(row["codec"])
    known = [(_spelled(names), *cells) for (_, *cells), names in rows.items()]
    return [head, *known, ("any other of zarr's", "by the CPU", "zarr")]


def _spelled(names: list[str]) -> str:
    """One name, or both spellings of a codec that zarr and numcodecs have."""
    return names[0] if len(names) == 1 else f"[numcodecs.]{names[0]}"
