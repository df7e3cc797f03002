"""`gpushard sample`: a small real data set to try things on."""

from __future__ import annotations

import json
import shlex
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from shutil import rmtree
from typing import Annotated, Any

import typer

from gpushard.cli.failures import failures_in_a_sentence
from gpushard.cli.output import AsJson, Debug, print_json, print_text
from gpushard.errors import StoreError

_READ_SELECTION = "u[0, :, 60:120, ::2]"


def sample(
    dest: Annotated[
        str, typer.Argument(metavar="DEST", help="Directory to make; new or empty.")
    ],
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Write a small real data set: a Zarr group of sharded arrays."""
    with failures_in_a_sentence(debug=debug, as_json=as_json):
        facts = _write_sample(dest)
        if as_json:
            print_json(facts)
            return
        print_text(
            f"{dest}: {facts['title']}, {len(facts['arrays'])} arrays,"
            f" {facts['nbytes']:,} bytes",
            facts["attribution"],
            "Try:",
            *(f"  {command}" for command in facts["next"]),
        )


def _write_sample(dest: str) -> dict[str, Any]:
    """Facts about the sample, once it is written to `dest`."""
    target = _new_directory(dest)
    source = files("gpushard") / "data" / "eraint.zarr"
    try:
        nbytes = _copy_directory(source, target)
    except BaseException as error:
        # The directory was empty, so its content is the sample's, which would prevent a
        # second try.
        for child in target.iterdir():
            rmtree(child) if child.is_dir() else child.unlink()
        if isinstance(error, OSError):
            raise _unwritable(dest, error) from error
        raise
    about = json.loads((source / "zarr.json").read_text(encoding="utf-8"))
    arrays = sorted(child.name for child in source.iterdir() if child.is_dir())
    whole, array = shlex.quote(dest), shlex.quote(f"{dest}/u")
    part = shlex.quote(f"{dest}/{_READ_SELECTION}")
    return {
        "dest": dest,
        "arrays": arrays,
        "nbytes": nbytes,
        "title": about["attributes"]["title"],
        "attribution": about["attributes"]["attribution"],
        "next": [
            f"gpushard info {whole}",
            f"gpushard map {array}",
            f"gpushard verify {whole}",
            f"gpushard read {part} --out u.npy --verify",
        ],
    }


def _new_directory(dest: str) -> Path:
    """Path of `dest`, which is now an empty directory.

    Raises `StoreError` if it is a URL or no name, is not empty, or cannot be made.
    """
    if "://" in dest:
        raise StoreError(
            f"the sample is written to local directories only, not to {dest}",
            hint="write it to a directory and upload that",
        )
    if not dest:
        raise StoreError("the name of the directory is empty", hint="name one to make")
    path = Path(dest)
    try:
        path.mkdir(parents=True, exist_ok=True)
        is_empty = next(path.iterdir(), None) is None
    except OSError as error:
        raise _unwritable(dest, error) from error
    if not is_empty:
        raise StoreError(
            f"{dest!r} exists and is not empty",
            hint="name a new directory, or remove this one first",
        )
    return path


def _unwritable(dest: str, error: OSError) -> StoreError:
    return StoreError(
        f"cannot write the sample to {dest!r}: {error.strerror or error}",
        hint="name a directory that you may write to",
    )


def _copy_directory(source: Traversable, target: Path) -> int:
    """Copy a directory of the package, maybe in an archive; returns the bytes."""
    nbytes = 0
    for child in source.iterdir():
        if child.is_dir():
            (target / child.name).mkdir()
            nbytes += _copy_directory(child, target / child.name)
        else:
            nbytes += (target / child.name).write_bytes(child.read_bytes())
    return nbytes
