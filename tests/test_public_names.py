"""`__all__` tells the truth: every module's public names are those it lists."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

import pytest_moegpu
from pytest_moegpu import fixtures, markers, plugin

PACKAGE = Path(pytest_moegpu.__file__).parent
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "suites" not in path.relative_to(PACKAGE).parts)


def defined(tree: ast.Module) -> set[str]:
    """Names without a leading underscore that a module defines itself; pytest finds its hooks by their names."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return {name for name in names if not name.startswith(("_", "pytest_"))}


def imported(tree: ast.Module) -> set[str]:
    """Names a module has from another one."""
    nodes = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    return {alias.asname or alias.name for node in nodes for alias in node.names}


def listed(tree: ast.Module) -> list[str] | None:
    """The names of `__all__`, None where a module has none."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    return None


def faults(source: str, *, reexports: bool) -> list[str]:
    """What is wrong between a module's names and its `__all__`."""
    tree = ast.parse(source)
    names = listed(tree)
    if names is None:
        return []
    passed_on = set(names) - defined(tree) - {"__version__"}
    found = [f"public but not in __all__: {name}" for name in sorted(defined(tree) - set(names))]
    found += [f"in __all__ but not there: {name}" for name in sorted(passed_on - imported(tree))]
    if not reexports:
        found += [f"in __all__ but of another module: {name}" for name in sorted(passed_on & imported(tree))]
    return found + ([] if len(names) == len(set(names)) else ["a name twice in __all__"])


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_public_names_are_those_of_all(path: Path) -> None:
    # pytest finds fixtures in the plugin module, so that one passes them on as a package's __init__ does.
    reexports = path.name in ("__init__.py", "plugin.py")
    assert faults(path.read_text(encoding="utf-8"), reexports=reexports) == []


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ('__all__ = ["a"]\ndef a(): pass\ndef b(): pass', "public but not in __all__: b"),
        ("__all__ = []\nLIMIT: int = 3", "public but not in __all__: LIMIT"),
        ('__all__ = ["gone"]', "in __all__ but not there: gone"),
        ('from json import loads\n__all__ = ["loads"]', "in __all__ but of another module: loads"),
        ('__all__ = ["a", "a"]\na = 1', "a name twice in __all__"),
    ],
)
def test_a_fault_is_found(source: str, fault: str) -> None:
    assert faults(source, reexports=False) == [fault]


@pytest.mark.parametrize("name", ["pytest_moegpu", "pytest_moegpu.plugin", "pytest_moegpu.session"])
def test_everything_listed_can_be_imported(name: str) -> None:
    module = importlib.import_module(name)
    for public in module.__all__:
        assert hasattr(module, public)


def test_the_package_shows_its_version_only() -> None:
    assert pytest_moegpu.__all__ == ["__version__"]
    assert pytest_moegpu.__version__[0].isdigit()


def test_the_plugin_passes_on_every_fixture() -> None:
    assert set(fixtures.__all__) == set(plugin.__all__) - {"active"}
    assert all(name.startswith("moegpu_") for name in fixtures.__all__)


def test_markers_are_the_documented_ones() -> None:
    assert set(markers.MARKERS) == {
        "moegpu",
        "moegpu_memory",
        "moegpu_throughput",
        "moegpu_context",
        "moegpu_output",
    }
    for name, (allowed, text) in markers.MARKERS.items():
        assert text.startswith(f"{name}(")
        assert all(f"{argument}" in text for argument in allowed if argument != "max"), name
