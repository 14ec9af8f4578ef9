"""The documentation is held against the code: its blocks, its tables, its links, and the examples themselves."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_moegpu import cli, fixtures
from pytest_moegpu.backends import BACKENDS, get_backend
from pytest_moegpu.catalog import Catalog, modelschema, schema, tables
from pytest_moegpu.core.model import LaunchSpec
from pytest_moegpu.core.verdict import METRICS, FailedClass, Outcome
from pytest_moegpu.markers import MARKERS
from pytest_moegpu.specs import CHECK_NAMES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
EXAMPLES = DOCS / "examples"
CATALOG = EXAMPLES / "my-catalog"
PAGES = sorted((ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md")))
FILE_LINE = re.compile(r"# file: (\S+)\n")
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def blocks(language: str) -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for number, (name, body) in enumerate(FENCE.findall(page.read_text(encoding="utf-8")), 1):
            if name == language:
                yield f"{page.relative_to(ROOT)} block {number}", body


def reference(name: str) -> str:
    return (DOCS / "reference" / f"{name}.md").read_text(encoding="utf-8")


def first_cells(text: str) -> set[str]:
    """Return what stands in backquotes in the first column of any table."""
    return set(re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE))


def same_as_file(place: str, body: str) -> None:
    if match := FILE_LINE.match(body):
        file = EXAMPLES / match[1]
        assert file.is_file(), f"{place}: {match[1]} is not in docs/examples"
        assert body[match.end() :] == file.read_text(encoding="utf-8"), f"{place} differs from {match[1]}"


def test_python_blocks() -> None:
    found = list(blocks("python"))
    assert found
    for place, body in found:
        compile(body, place, "exec")
        same_as_file(place, body)


def test_toml_blocks() -> None:
    found = list(blocks("toml"))
    assert found
    for place, body in found:
        tomllib.loads(body)
        same_as_file(place, body)


def test_every_example_is_shown() -> None:
    bodies = (body for language in ("python", "toml") for _, body in blocks(language))
    shown = {match[1] for body in bodies if (match := FILE_LINE.match(body))}
    files = {str(path.relative_to(EXAMPLES)) for suffix in ("py", "toml") for path in EXAMPLES.rglob(f"*.{suffix}")}
    assert shown == files


def test_example_catalog_is_sound() -> None:
    argv = [sys.executable, "-m", "pytest_moegpu.catalog", str(CATALOG)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "profiles/my-rtx3090.toml" in done.stdout


def test_options() -> None:
    argv = [sys.executable, "-m", "pytest", "--help", "-p", "no:cacheprovider"]
    told = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True, cwd=ROOT).stdout
    group = re.search(r"^GPU gate .*?:\n(.*?)^\S", told, re.MULTILINE | re.DOTALL)
    assert group is not None, told
    options = set(re.findall(r"^  (--[\w-]+)", group[1], re.MULTILINE))
    ini = set(re.findall(r"^  (moegpu_\w+) \(", told, re.MULTILINE))
    cells = first_cells(reference("options"))
    assert options
    assert ini
    assert {cell for cell in cells if cell.startswith("--")} == options
    assert {cell for cell in cells if cell.startswith("moegpu_")} == ini


def test_environment_variables() -> None:
    """Each MOEGPU_ variable that the source reads is documented, and no other."""
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "pytest_moegpu").rglob("*.py"))
    read = {name for text in sources for name in re.findall(r'"(MOEGPU_[A-Z_]+)"', text)}
    assert {cell for cell in first_cells(reference("options")) if cell.startswith("MOEGPU_")} == read


def test_markers_and_fixtures() -> None:
    page = reference("markers-fixtures")
    cells = first_cells(page)
    assert set(MARKERS) | set(fixtures.__all__) <= cells
    told: dict[str, set[str]] = {name: set() for name in MARKERS}
    marker = ""
    for first, argument in re.findall(r"^\| (?:`(\w+)`)? ?\| `(\w+)` \|", page, re.MULTILINE):
        marker = first or marker
        told[marker].add(argument)
    assert told == {name: set(arguments) for name, (arguments, _) in MARKERS.items()}
    for check in CHECK_NAMES:
        assert f"`{check}`" in page


def keys(table: tables.Table, prefix: str = "") -> Iterator[str]:
    for word, form in table.items():
        if isinstance(form, tables.Key):
            yield prefix + word
        elif word == "limits":
            yield word
        else:
            yield from keys(form.table, f"{prefix}{word}.")


def test_catalog_keys() -> None:
    limits = schema.SCENARIOS["limits"]
    assert isinstance(limits, tables.Sub)
    wanted = {
        key for table in (schema.PROFILES, schema.SCENARIOS, modelschema.MODELS, limits.table) for key in keys(table)
    }
    assert first_cells(reference("catalog")) == wanted


def test_cli() -> None:
    page = reference("cli")
    assert first_cells(page) >= {f"moegpu {verb}" for verb in cli.VERBS}
    for verb in cli.VERBS:
        told = subprocess.run(
            [sys.executable, "-m", "pytest_moegpu.cli", verb, "--help"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        for option in set(re.findall(r"^  (--[\w-]+)", told, re.MULTILINE)):
            assert f"`{option}" in page, f"moegpu {verb} {option}"


def test_outcomes_and_metrics() -> None:
    page = reference("outcomes")
    assert {*Outcome, *FailedClass, *METRICS, *CHECK_NAMES} <= first_cells(page)
    for metric in METRICS.values():
        row = next(line for line in page.splitlines() if line.startswith(f"| `{metric.name}` |"))
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        compared = "yes" if metric.compared else "no"
        assert cells[1:5] == [metric.unit, metric.better, f"{metric.tolerance * 100:g} %", compared]
        assert cells[5] == metric.definition.replace("one stream, ", "")


def test_changelog_names_what_is_shipped() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    catalog = Catalog.load()
    names = [*(p.name for p in catalog.profiles()), *(s.name for s in catalog.scenarios()), *MARKERS, *cli.VERBS]
    assert not [name for name in names if f"`{name}`" not in text]


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links() -> None:
    broken = []
    for page in PAGES:
        text = FENCE.sub("", page.read_text(encoding="utf-8"))
        for link in LINK.findall(text):
            if re.match(r"[a-z]+:", link):
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
                broken.append(f"{page.relative_to(ROOT)}: {link}")
    assert not broken


@pytest.mark.alone
@pytest.mark.parametrize("name", ["test_my_gpu.py"])
def test_example_runs_green(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example as a stranger runs it: from a folder of their own, with the real server and the real model."""
    pytest.importorskip("xllamacpp")
    for variable in ("MOEGPU_PROFILE", "MOEGPU_MODEL", "PYTEST_ADDOPTS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / name).write_text((EXAMPLES / name).read_text(encoding="utf-8"))
    # The shorter scenario keeps this below a minute; the markers and limits are the same for every scenario.
    scenario = (f"--moegpu-catalog={CATALOG}", "--moegpu-scenario=quick-1k")
    argv = [sys.executable, "-m", "pytest", "--moegpu=embedded", "--moegpu-starts=1", *scenario, name]
    for _ in range(2):
        done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
        # Once more where the plugin itself says that this machine was too busy to measure.
        if "client too slow" not in done.stdout:
            break
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"=+ 6 passed in ", done.stdout), done.stdout
    assert list((tmp_path / ".moegpu/runs").glob("*/run.json"))


def test_the_table_of_backends_is_that_of_the_recipes() -> None:
    def cell(value: str | None) -> str:
        return f"`{value}`" if value else "-"

    rows = [line for line in reference("backends").splitlines() if line.startswith("| [`")]
    told = {row.split("`")[1]: [part.strip() for part in row.strip("|").split("|")[1:]] for row in rows}
    assert told == {
        name: [
            cell(backend.program),
            cell(backend.program_variable),
            ", ".join(backend.model_formats),
            cell(backend.health_path),
            cell(backend.props_path),
            cell(backend.metrics_path),
        ]
        for name in BACKENDS
        for backend in (get_backend(name),)
    }


@pytest.mark.parametrize("name", sorted(BACKENDS))
def test_the_table_of_what_is_known_of_a_run_is_that_of_the_recipe(name: str) -> None:
    backend = get_backend(name)
    started = bool(backend.program)
    section = reference("backends").split("## What is known of a run")[1].split("## ")[0]
    (row,) = (line for line in section.splitlines() if line.startswith(f"| `{name}` |"))
    *_, exact, begun, logprobs, key, seconds = (cell.strip() for cell in row.strip("|").split("|"))
    asked = "yes" if started else "if it tells"
    assert exact == ("yes" if backend.ignores_eos else "no")
    assert begun == ("yes" if backend.continues_prefill else "no")
    assert logprobs == (asked if backend.gives_logprobs else "no")
    assert key == ("by environment" if backend.takes_key else "none" if started else "`MOEGPU_API_KEY`")
    assert seconds == (f"{backend.stop_seconds:g}" if started else "never stopped")


@pytest.mark.parametrize("name", ["vllm", "sglang", "fastllm", "mlx"])
def test_the_example_of_an_engine_is_a_catalog_that_its_recipe_can_start(name: str, tmp_path: Path) -> None:
    page = (DOCS / "how-to" / f"{name}.md").read_text(encoding="utf-8")
    for text in (body for language, body in FENCE.findall(page) if language == "toml"):
        example = tomllib.loads(text)
        folder = tmp_path / ("profiles" if "scenarios" in example else "scenarios")
        folder.mkdir(exist_ok=True)
        (folder / f"{example['name']}.toml").write_text(text, encoding="utf-8")
    catalog = Catalog.load([tmp_path])
    profile = catalog.profile(f"my-{name}")
    scenario = catalog.scenario(profile.scenarios[0], profile)
    assert profile.backend == scenario.backend == name
    spec = LaunchSpec(
        program=("program",),
        model_path="/models/folder",
        model_name="model",
        settings=scenario.settings,
        host="127.0.0.1",
        port=8000,
        api_key="",
        device_kind=profile.gpu.kind,
        compute_capability=profile.gpu.compute_capability,
    )
    section = page.split("## What is started")[1].split("## What is read")[0]
    argv = get_backend(name).argv(spec)
    told = set(re.findall(r"(--[\w-]+)", section))
    assert {word for word in argv if word.startswith("--")} <= told | {"--host", "--port"}
