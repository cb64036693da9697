"""Imports point one way: cli -> api -> evaluate -> ... -> _core, with the pure data at the bottom."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Set
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "qtool"
# Top to bottom. A module imports from its own row or from a lower one.
ORDER = (
    "__main__",
    "cli",
    "__init__",
    "api",
    "evaluate",
    "publish",
    "convert",
    "emit",
    "plan",
    "weights",
    "calibrate",
    "prepare",
    "bench",
    "runtime",
    "kernels",
    "_core",
)
# Pure data and formulas, usable from everywhere. They may use those before them in this order, and nothing else.
BOTTOM = (
    *("errors", "dtypes", "granularity", "weight_settings", "overrides", "targets", "config", "qparams", "signal"),
    *("version", "deferred", "wire", "placing", "reference"),
)
LEVEL = {name: len(ORDER) - i for i, name in enumerate(ORDER)} | {
    name: i - len(BOTTOM) for i, name in enumerate(BOTTOM)
}
# Who alone may import what, and from which layers.
RESERVED = {
    "qtool._core": {"kernels"},
    "typer": {"cli"},
    "rich": {"cli"},
    "onnxruntime": {"runtime", "bench"},  # bench measures it bare
}
FORBIDDEN = {"click", "typer._click"}  # typer vendors its own; neither is public
FILES = sorted(PACKAGE.rglob("*.py"))


def layer(module: str) -> str:
    """qtool.plan.ops.conv -> plan; qtool itself -> __init__."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def nodes(tree: ast.AST, *, types_too: bool) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(tree):
        if is_type_checking(child) and not types_too:
            continue
        yield child
        yield from nodes(child, types_too=types_too)


def imports(source: str, module: str, *, is_package: bool, types_too: bool = True) -> set[str]:
    """Every module that a source imports, wherever in the file; relative imports resolved."""
    found = set()
    for node in nodes(ast.parse(source), types_too=types_too):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".")
            base = base[: len(base) - node.level + is_package] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            # `from qtool import kernels` imports qtool.kernels, `from qtool import __version__` only qtool
            submodules = {f"{origin}.{alias.name}" for alias in node.names if f"{origin}.{alias.name}" in known()}
            found |= submodules or {origin}
    return found


@cache
def known() -> frozenset[str]:
    return frozenset({module_name(path) for path in FILES} | {"qtool._core"})


def violations(source: str, module: str, *, is_package: bool = False) -> list[str]:
    here = layer(module)
    bad = []
    for name in sorted(imports(source, module, is_package=is_package)):
        if any(name == f or name.startswith(f"{f}.") for f in FORBIDDEN):
            bad.append(f"{module} imports {name}, which is not public")
        for reserved, owners in RESERVED.items():
            if (name == reserved or name.startswith(f"{reserved}.")) and here not in owners:
                bad.append(f"{module} imports {name}, which only {', '.join(owners)} may")
        if name.split(".")[0] == "qtool":
            there = layer(name)
            if name == "qtool" and here in ("api", "cli"):  # for its version; the package resolves names lazily
                continue
            if LEVEL[there] > LEVEL[here]:
                bad.append(f"{module} imports {name}: {here} lies below {there}")
    return bad


def test_every_module_has_a_layer():
    assert {layer(module_name(path)) for path in FILES} <= set(LEVEL)


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_imports_point_down(path: Path):
    assert violations(path.read_text(), module_name(path), is_package=path.name == "__init__.py") == []


def circles(graph: Mapping[str, Set[str]]) -> list[set[str]]:
    """Modules that import each other, perhaps by way of others; each in the largest such set."""
    reached = {module: frozenset(below) for module, below in graph.items()}
    changed = True
    while changed:
        further = {m: below.union(*(reached.get(b, frozenset()) for b in below)) for m, below in reached.items()}
        changed, reached = further != reached, further
    found = {frozenset(b for b in below if m in reached.get(b, ())) for m, below in reached.items() if m in below}
    return sorted(map(set, found), key=sorted)


def test_no_module_imports_one_that_imports_it():
    """Nor for its annotations alone. What a package's ``__init__`` defines is there for the files of the package."""
    graph = {}
    for path in FILES:
        module, is_package = module_name(path), path.name == "__init__.py"
        found = imports(path.read_text(), module, is_package=is_package)
        graph[module] = {
            name for name in found if name.startswith("qtool.") and not f"{module}.".startswith(f"{name}.")
        }
    assert len(graph) > 300
    assert circles(graph) == []


def test_circles_are_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == [{"b", "c"}]
    assert circles({"a": {"b"}, "b": {"a"}, "c": {"d"}, "d": {"e"}, "e": {"c"}}) == [{"a", "b"}, {"c", "d", "e"}]
    assert circles({"a": {"b", "c"}, "b": {"c"}}) == []


@pytest.mark.parametrize(
    ("module", "source", "complaints"),
    [
        ("qtool.plan.plan", "from qtool.emit import qdq", 1),
        ("qtool.plan.plan", "def f():\n    import qtool.api", 1),
        ("qtool.plan.plan", "if TYPE_CHECKING:\n    from qtool.api import X", 1),
        ("qtool.plan.plan", "from qtool.calibrate.samples import X\nfrom qtool.errors import Y", 0),
        ("qtool.plan.plan", "from .analysis import X", 0),
        ("qtool.plan.plan", "from ..emit import X", 1),
        ("qtool.emit.qdq", "from qtool import kernels", 0),
        ("qtool.dtypes", "from qtool.errors import X", 0),
        ("qtool.errors", "from qtool.dtypes import X", 1),
        ("qtool.qparams", "from qtool import kernels", 1),
        ("qtool.plan.plan", "import qtool._core", 1),
        ("qtool.kernels", "from qtool import _core", 0),
        ("qtool.api", "import rich.console", 1),
        ("qtool.cli.app", "import typer\nfrom rich.table import Table", 0),
        ("qtool.cli.app", "import click", 1),
        ("qtool.cli.app", "from typer._click import Context", 1),
        ("qtool.evaluate.compare", "import onnxruntime as ort", 1),
        ("qtool.runtime.ort", "import onnxruntime as ort", 0),
    ],
)
def test_the_checker_itself(module: str, source: str, complaints: int):
    assert len(violations(source, module)) == complaints
