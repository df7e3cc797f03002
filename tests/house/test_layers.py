"""The walk through the package, held: who may import whom, and what, and how long.

`ARCHITECTURE.md` tells the same in prose; the last test here keeps the two together.
"""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from types import UnionType

from places import ROOT

PACKAGE = ROOT / "gpushard"

# Lower layers never import higher ones. A name stands for its module or, for a layer
# that is a package, for every module in it that has no rank of its own. Layers of the
# same rank do not import one another; the modules of one package may.
WALK = (
    ("errors", "machine", "cached_files", "chunk_keys", "threads"),
    ("arguments", "write_options", "quiet", "zarr_thread"),
    ("options", "report", "damage", "attributes"),
    ("layout", "pages"),
    ("selecting", "stores.base"),
    ("codecs.base",),
    ("planning", "codecs.blosc_frame"),
    ("memory", "devices", "stores", "codecs"),
    ("pipeline",),
    ("formats", "stored"),
    ("hierarchies",),
    ("metadata", "transformer", "source"),
    ("nearby", "remade", "listed", "moving", "fetching"),
    ("placing",),
    ("fused",),
    ("reading",),
    ("device_reading",),
    ("writing",),
    ("dask_blocks",),
    ("numpy_like",),
    ("array",),
    ("concatenation", "group", "creation", "inspection"),
    ("converting", "rolling"),
    ("integrations",),
    ("loader",),
    ("cli",),
    ("__main__",),
)
RANK = {layer: rank for rank, layers in enumerate(WALK) for layer in layers}

PURE = {
    "errors",
    "arguments",
    "options",
    "layout",
    "selecting",
    "planning",
    "inspection.columns",
    "inspection.findings",
    "moving.window",
}
IMPURE_STDLIB = {
    "asyncio",
    "concurrent",
    "io",
    "logging",
    "mmap",
    "multiprocessing",
    "os",
    "pathlib",
    "random",
    "shutil",
    "socket",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "urllib",
}

# Third-party packages and the layers that may import them, even lazily.
DOORS = {
    "numpy": set(RANK),
    "zarr": {"metadata", "formats", "stores", "cli", "integrations.zarr", "zarr_thread"}
    | {"codecs.zarr_codec", "codecs.chain_encoder", "codecs.zarr_objects"},
    "dask": {"dask_blocks"},
    "xarray": {"integrations.xarray", "integrations.xarray_arrays"},
    "numcodecs": {"codecs"},
    "zstandard": {"codecs", "fused.libraries", "cli.device_rates"},
    "cramjam": {"codecs", "cli.device_rates"},
    "crc32c": {"codecs"},
    "ml_dtypes": {"formats", "codecs"},
    "numba": {"fused"},
    "llvmlite": {"fused"},
    "obstore": {"stores"},
    "fsspec": {"stores.zarr.fsspec_store", "stores.zarr.one_at_a_time"},
    "certifi": {"stores"},
    "typer": {"cli"},
    "rich": {"cli", "converting.progress"},
    "cupy": {"devices.cuda", "devices.cuda_facts"},
    "matplotlib": {"cli.map_image"},
    "tensorstore": {"cli"},
    "zarrs": {"cli"},
    "kvikio": {"device_reading.payload.kvikio_file"},
    "torch": {"loader.batches"},
    "jax": {"loader.batches"},
}
# Not there after a plain install, or slow to import: never at a module's top level.
LAZY = {
    "certifi",
    "cupy",
    "dask",
    "fsspec",
    "jax",
    "kvikio",
    "llvmlite",
    "matplotlib",
    "ml_dtypes",
    "numba",
    "obstore",
    "tensorstore",
    "torch",
    "xarray",
    "zarrs",
}
# Modules that derive from another package's classes: imported only when that package
# is there, by its entry point or by the module that names their door.
ENTERED = {
    "integrations.xarray",
    "integrations.xarray_arrays",
    "stores.zarr.one_at_a_time",
}

# Functions that several modules have alike. The first three rows are called by way of
# their modules: of codecs, of libraries, and of the formats of metadata.
SHARED = {
    "from_spec",
    *("find", "new_context", "decode_frame", "decode_first"),
    *("parse_array", "find_array", "find_group"),
    "address_of",  # of bytes, or of an array that has at least one element
    "convert",  # the function, and the command of that name
}

MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 60


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


# The package's own __init__ is the door of all layers: it resolves names lazily and is
# held by test_import_cost.
MODULES = {module_name(p): p for p in sorted(PACKAGE.rglob("*.py")) if module_name(p)}
# Modules of compiled code, which are themselves imported only when used.
COMPILED = {"fused.code.compiling"} | {
    name for name in MODULES if name.startswith("fused.compiled.")
}


@cache
def tree(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text(encoding="utf-8"))


@cache
def nodes_of(name: str) -> list[ast.AST]:
    return list(ast.walk(tree(name)))


def imported(nodes) -> set[str]:
    """Dotted names of everything that the import statements among `nodes` import."""
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def executed(node, *, into_functions: bool):
    """Nodes below `node` that can run: not what only type checkers see.

    Without `into_functions`, those that run when the module is imported.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        if is_function and not into_functions:
            continue
        yield child
        yield from executed(child, into_functions=into_functions)


def packages(nodes) -> set[str]:
    """Packages from elsewhere that the import statements among `nodes` import."""
    return {name.partition(".")[0] for name in imported(nodes)} - {"gpushard"}


@cache
def own_modules(name: str) -> set[str]:
    """Modules of the package that module `name` imports, lazily or not."""
    found: set[str] = set()
    for target in imported(nodes_of(name)):
        if not target.startswith("gpushard."):
            continue
        inner = target.removeprefix("gpushard.")
        while inner and inner not in MODULES:
            inner = inner.rpartition(".")[0]
        assert inner, f"{name} imports {target}: import from the module, not the door"
        found.add(inner)
    return found


def layer_of(name: str) -> str:
    """The longest dotted prefix of `name` that has a rank; "" if none has."""
    while name and name not in RANK:
        name = name.rpartition(".")[0]
    return name


def is_inside(name: str, layer: str) -> bool:
    return name == layer or name.startswith(f"{layer}.")


def test_every_module_has_a_place_on_the_walk():
    assert [name for name in MODULES if not layer_of(name)] == []


def test_every_place_on_the_walk_has_a_module():
    assert [layer for layer in RANK if layer not in MODULES] == []


def test_lower_layers_never_import_higher_ones():
    upwards = [
        f"{name} imports {target}"
        for name in MODULES
        for target in own_modules(name)
        if (other := layer_of(target)) != (layer := layer_of(name))
        and RANK[other] >= RANK[layer]
    ]
    assert upwards == []


def test_modules_import_one_another_in_no_circle():
    graph = {name: own_modules(name) - {name} for name in MODULES}
    TopologicalSorter(graph).prepare()


def test_third_party_packages_stay_behind_their_doors():
    outside = [
        f"{name} imports {package}"
        for name in MODULES
        for package in packages(executed(tree(name), into_functions=True))
        if package not in sys.stdlib_module_names
        and not any(is_inside(name, door) for door in DOORS.get(package, ()))
    ]
    assert outside == []


def test_heavy_packages_are_imported_only_when_used():
    costly = {f"gpushard.{module}" for module in COMPILED | ENTERED}
    at_once = {}
    for name in set(MODULES) - COMPILED - ENTERED:
        nodes = list(executed(tree(name), into_functions=False))
        at_once[name] = packages(nodes) & LAZY | costly & imported(nodes)
    assert {name: heavy for name, heavy in at_once.items() if heavy} == {}


def test_pure_layers_compute_and_nothing_else():
    impure = []
    for name in (n for n in MODULES if any(is_inside(n, layer) for layer in PURE)):
        used = packages(nodes_of(name))
        foreign = used - sys.stdlib_module_names - {"numpy"}
        impure += [f"{name} imports {p}" for p in foreign | used & IMPURE_STDLIB]
    assert impure == []


def n_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_modules_can_be_read_in_one_sitting():
    paths = [*MODULES.values(), *(ROOT / "tests").rglob("*.py")]
    assert len(paths) > len(MODULES)
    assert [str(p) for p in paths if n_lines(p) > MAX_MODULE_LINES] == []


def test_functions_are_short():
    too_long = {
        f"{name}.{node.name}": node.end_lineno - node.lineno + 1
        for name in MODULES
        for node in nodes_of(name)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno >= MAX_FUNCTION_LINES
    }
    assert too_long == {}


def test_architecture_names_every_module_and_no_other():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    modules_text = text.partition("## Modules")[2].partition("## ")[0]
    named = set(re.findall(r"`([a-z0-9_/]+\.py)`", modules_text))
    modules = {
        path.relative_to(PACKAGE).as_posix()
        for path in MODULES.values()
        if path.name != "__init__.py"
    }
    assert named == modules


def test_architecture_draws_the_walk_in_this_order():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    drawn = re.search(r"```walk\n(.*?)```", text, flags=re.DOTALL)
    assert drawn is not None
    rows = [tuple(line.split()) for line in drawn[1].splitlines()]
    assert rows == list(WALK)


def homes_of(kinds: type[ast.AST] | UnionType) -> dict[str, list[str]]:
    """Modules that define each public class or function of the given kinds."""
    homes: dict[str, list[str]] = {}
    for name in MODULES:
        for node in tree(name).body:
            if isinstance(node, kinds) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(name)
    return homes


def test_no_two_modules_define_a_class_of_the_same_name():
    homes = homes_of(ast.ClassDef)
    assert len(homes) > 200
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


def test_functions_share_a_name_only_if_they_do_the_same_for_different_things():
    homes = homes_of(ast.FunctionDef | ast.AsyncFunctionDef)
    assert len(homes) > 700
    assert {name for name, where in homes.items() if len(where) > 1} == SHARED
