"""Targets by name, and what holds for each input of any of them."""

from __future__ import annotations

import ctypes
import random
import re
import resource
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from types import ModuleType
from typing import Any

from fuzz import mutations

TARGETS = (
    *("metadata", "historic", "index", "streams", "shards", "loops", "device"),
    *("writing", "conversion", "rolling", "answers", "puts", "selections"),
)

NETWORKED = ("answers", "puts")
"""Targets that talk to a server of this process, some of it by obstore."""

LIMIT_S = 10
"""Processor time of one input beyond which it is a finding."""

_ROOM_NBYTES = 512 * 1024**2
_ARENA_MAX = -8  # M_ARENA_MAX of glibc's malloc.h
# Mutated inputs that are mutated further.
_KEPT = 50
_ROOT = Path(__file__).resolve().parents[2]
# Of its module, whose other functions Python runs, the loops take one.
_COMPILED_ELSEWHERE = "columns"


def load(name: str) -> ModuleType:
    """Module of a target."""
    return import_module(f"fuzz.target_{name}")


def load_instrumented(name: str, within: str) -> tuple[ModuleType, Any]:
    """Module of a target, with the branches of a package counted, and atheris itself.

    `within` is the package, or the module: ``gpushard``, ``gpushard.planning.index``.
    """
    import atheris

    with atheris.instrument_imports(include=[within], exclude=compiled_modules()):
        top = import_module(within)
        # Not from `gpushard` on: to walk past a package imports it.
        for module in walk_packages(getattr(top, "__path__", ()), f"{within}."):
            if module.name.endswith("__main__"):
                continue
            try:
                import_module(module.name)
            except ImportError:  # an extra that is not installed
                continue
    return load(name), atheris


def compiled_modules() -> list[str]:
    """Modules that numba compiles: it does not know what instrumentation adds."""
    return [
        ".".join(path.relative_to(_ROOT).with_suffix("").parts)
        for path in sorted((_ROOT / "gpushard" / "fused").rglob("*.py"))
        if path.stem == _COMPILED_ELSEWHERE
        or re.search("from numba import|@calls.inner", path.read_text())
    ]


def checked(target: ModuleType, data: bytes) -> bool:
    """Outcome of an input; raises on a finding, a slow input being one."""
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        accepted = target.check(data)
    if time.process_time() - start > LIMIT_S:
        raise TimeoutError(f"an input took more than {LIMIT_S} s")
    return accepted


@contextmanager
def bounded_memory(target: ModuleType) -> Iterator[None]:
    """Let allocations fail that go far beyond what the process has now."""
    # Each thread that starts later would reserve 64 MiB for an arena of its own.
    ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    room_nbytes = getattr(target, "ROOM_NBYTES", _ROOM_NBYTES)
    limit = pages * resource.getpagesize() + room_nbytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def short_run(name: str, n: int, seed: int) -> dict[bool, int]:
    """How many of `n` inputs a target accepted and refused; no coverage is asked.

    The same inputs in every run: some seeds, and what mutations make of them.
    """
    target, rng = load(name), random.Random(seed)
    seeds = target.seeds()
    n_seeds = min(len(seeds), n // 4)
    pool = rng.sample(seeds, n_seeds)
    counts = {True: 0, False: 0}
    with bounded_memory(target):
        for k in range(n):
            data = pool[k] if k < n_seeds else mutated(target, rng.choice(pool), rng)
            if k >= n_seeds and rng.random() < 0.1:  # later steps go on from there
                pool = [*pool[: n_seeds + _KEPT], data]
            try:
                counts[checked(target, data)] += 1
            except Exception as error:
                error.add_note(f"target {name}, input {data.hex()}")
                raise
    return counts


def mutated(target: ModuleType, data: bytes, rng: random.Random) -> bytes:
    """One step away from `data`, in bytes or in the format of the target."""
    if hasattr(target, "mutate") and rng.random() < 0.8:
        return target.mutate(data, rng)
    return mutations.damaged(data, rng)


def mutator(target: ModuleType, atheris: Any) -> Callable[..., bytes] | None:
    """atheris' mutations, and between them the target's own; None if it has none."""
    if not hasattr(target, "mutate"):
        return None

    def mutate(data: bytes, max_size: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if rng.random() < 0.8:
            made = target.mutate(bytes(data), rng)
            if 0 < len(made) <= max_size:
                return made
        return atheris.Mutate(data, max_size)

    return mutate


def dictionary(target: ModuleType) -> str:
    """libFuzzer's dictionary of a target."""
    words = (*mutations.WORDS, *getattr(target, "DICTIONARY", ()))
    return "".join(
        '"' + "".join(f"\\x{byte:02x}" for byte in word) + '"\n' for word in words
    )
