"""The import table of the design, enforced: who may import what, of our own packages and of others."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pytest_moegpu"
MODULES = sorted(PACKAGE.rglob("*.py"))
SUITES = sorted((ROOT / "suites").glob("*.py"))
MOST_LINES = 330

PYTEST_SIDE = (
    "plugin",
    "fixtures",
    "options",
    "markers",
    "run",
    "terminal",
    "benchmark",
    "questions",
    "specs",
    "rerun",
    "outcome",
    "own_suites",
    "closing",
)
PYTEST_MAY = {*PYTEST_SIDE, "session", "core", "report", "errors", "checks"}
OWN: dict[str, set[str]] = {
    "errors": set(),
    "core": {"errors"},
    "catalog": {"core", "errors"},
    "backends": {"core", "errors"},
    "checks": {"core", "errors"},
    "report": {"core"},
    "host": {"core", "errors"},
    "session": {"core", "errors", "catalog", "backends", "checks", "host", "report", "options"},
    "cli": {"session", "core", "report", "host", "errors"},
    **dict.fromkeys(PYTEST_SIDE, PYTEST_MAY),
}
"""Package or module → what it may import of ours besides itself. The bare package (`__version__`) is open to all."""

OTHERS: dict[str, set[str]] = {
    "core": {"numpy", "scipy", "msgspec", "ruptures"},
    "catalog": {"msgspec"},
    "report": {"tabulate", "jinja2", "matplotlib", "prometheus_client"},
    "host": {"pynvml", "httpx", "httptools", "msgspec", "psutil", "gguf", "tqdm", "uvloop", "xllamacpp"},
    **{name: {"pytest"} for name in PYTEST_SIDE},
}
"""Package → third parties it may import."""

ONLY_IN_FUNCTIONS = {"numpy", "scipy", "jinja2", "matplotlib", "prometheus_client", "ruptures", "uvloop", "xllamacpp"}
ONLY_IN_FILE = {
    "pynvml": "host/nvml.py",
    "xllamacpp": "host/embedded_server.py",
    "httpx": "host/control.py",
    "httptools": "host/client.py",
    "uvloop": "host/client.py",
    "ruptures": "core/trend.py",
}
STANDARD_LIBRARY_ONLY = (
    "host/supervisor.py",
    "host/proctree.py",
    "host/boundedlog.py",
    "host/ballast.py",
    "host/ending.py",
)

FOR_TYPES_ONLY = {("errors", "core")}
"""What may be imported only under TYPE_CHECKING: an exception carries a record, but imports nothing to do so."""


@dataclass(frozen=True, kw_only=True)
class Import:
    """One imported module. `local` is inside a function, `typing` under `if TYPE_CHECKING`."""

    module: str
    line: int
    local: bool
    typing: bool


def imports(source: str, package: str) -> Iterator[Import]:
    """Find every import; `from pytest_moegpu import x` counts as `pytest_moegpu.x` where x is one of our modules."""

    def walk(node: ast.AST, local: bool, typing: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            for module in _modules(child, package):
                yield Import(module=module, line=child.lineno, local=local, typing=typing)  # type: ignore[attr-defined]
            inside = local or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
                for part in child.body:
                    yield from walk(ast.Module(body=[part], type_ignores=[]), inside, True)
                for part in child.orelse:
                    yield from walk(ast.Module(body=[part], type_ignores=[]), inside, typing)
            else:
                yield from walk(child, inside, typing)

    yield from walk(ast.parse(source), False, False)


def _modules(node: ast.AST, package: str) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = node.module or ""
    if node.level:
        parents = package.split(".")[: len(package.split(".")) - node.level + 1]
        base = ".".join([*parents, *([base] if base else [])])
    if base == "pytest_moegpu":
        return [f"{base}.{alias.name}" if alias.name in OWN else base for alias in node.names]
    return [base]


def violations(source: str, relative: str) -> list[str]:
    """Return what breaks the table in a module that lies at `relative` inside the package."""
    path = Path(relative)
    unit = path.parts[0] if len(path.parts) > 1 else path.stem
    package = ".".join(("pytest_moegpu", *path.parts[:-1]))
    found = []
    for item in imports(source, package):
        where = f"{relative}:{item.line}"
        top, _, rest = item.module.partition(".")
        if top == "pytest_moegpu":
            target = rest.partition(".")[0]
            allowed = not target or target == unit or target in OWN.get(unit, set())
            if not allowed and not (item.typing and (unit, target) in FOR_TYPES_ONLY):
                found.append(f"{where}: {unit} may not import {target}")
        elif top not in sys.stdlib_module_names:
            if top not in OTHERS.get(unit, set()):
                found.append(f"{where}: {unit} may not import {top}")
            if relative != ONLY_IN_FILE.get(top, relative):
                found.append(f"{where}: only {ONLY_IN_FILE[top]} imports {top}")
            if top in ONLY_IN_FUNCTIONS and not item.local:
                found.append(f"{where}: {top} is imported inside the function that needs it")
        if top not in sys.stdlib_module_names and relative in STANDARD_LIBRARY_ONLY:
            found.append(f"{where}: standard library only, not {item.module}")
    return found


def _relative(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@pytest.mark.parametrize("path", MODULES, ids=_relative)
def test_imports_follow_the_table(path: Path) -> None:
    assert violations(path.read_text(encoding="utf-8"), _relative(path)) == []


def test_every_unit_of_the_package_is_in_the_table() -> None:
    units = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in MODULES} - {"__init__"}
    assert units == set(OWN)


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.name)
def test_suites_import_pytest_and_the_standard_library_only(path: Path) -> None:
    tops = {item.module.partition(".")[0] for item in imports(path.read_text(encoding="utf-8"), "")}
    assert tops - sys.stdlib_module_names <= {"pytest"}


@pytest.mark.parametrize(
    ("relative", "source", "says"),
    [
        ("core/x.py", "from pytest_moegpu.host.store import RunStore", "core may not import host"),
        ("core/x.py", "def f():\n    from pytest_moegpu.session import Session", "core may not import session"),
        ("core/x.py", "from pytest_moegpu import host", "core may not import host"),
        ("core/x.py", "from ..host import store", "core may not import host"),
        (
            "core/x.py",
            "class A:\n    try:\n        import pytest\n    except ImportError: pass",
            "may not import pytest",
        ),
        ("core/x.py", "import scipy.stats", "inside the function"),
        ("checks/x.py", "import numpy", "checks may not import numpy"),
        ("report/x.py", "from pytest_moegpu.errors import UserError", "report may not import errors"),
        ("errors.py", "from pytest_moegpu.core.evidence import Phase", "errors may not import core"),
        ("session/x.py", "import psutil", "session may not import psutil"),
        ("session/x.py", "from pytest_moegpu.run import Run", "session may not import run"),
        ("session/x.py", "import pytest", "session may not import pytest"),
        ("run.py", "import httpx", "only host/control.py imports httpx"),
        ("run.py", "from _pytest.config import Config", "run may not import _pytest"),
        ("run.py", "from pytest_moegpu.host.store import RunStore", "run may not import host"),
        ("cli.py", "from pytest_moegpu.catalog import Catalog", "cli may not import catalog"),
        ("host/x.py", "import pynvml", "only host/nvml.py imports pynvml"),
        ("host/embedded_server.py", "import xllamacpp", "inside the function"),
        ("host/supervisor.py", "import psutil", "standard library only"),
        ("host/supervisor.py", "from pytest_moegpu.errors import UserError", "standard library only"),
        ("surprise.py", "from pytest_moegpu.core import units", "surprise may not import core"),
    ],
)
def test_the_walker_catches_a_broken_module(relative: str, source: str, says: str) -> None:
    found = violations(source, relative)
    assert any(says in text for text in found), found


@pytest.mark.parametrize(
    ("relative", "source"),
    [
        ("core/x.py", "def f():\n    import numpy\n    from scipy.stats import t"),
        ("core/x.py", "from . import units\nfrom .units import GIB\nimport json, math"),
        ("errors.py", "if TYPE_CHECKING:\n    from pytest_moegpu.core.evidence import StartFailure"),
        ("cli.py", "from pytest_moegpu import __version__"),
        ("host/nvml.py", "import pynvml"),
    ],
)
def test_the_walker_lets_a_sound_module_pass(relative: str, source: str) -> None:
    assert violations(source, relative) == []


@pytest.mark.parametrize("path", [*MODULES, *SUITES], ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_module_says_what_it_is_for_and_is_short(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(source))
    assert len(source.splitlines()) <= MOST_LINES


def test_private_parts_of_pytest_are_not_used() -> None:
    users = [_relative(path) for path in MODULES if "_pytest" in path.read_text(encoding="utf-8")]
    assert users == []
