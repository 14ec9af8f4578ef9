from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import psutil

from pytest_moegpu.host.boundedlog import HEAD_BYTES, TAIL_BYTES
from pytest_moegpu.host.oneshot import Ended, run_once


def run(tmp_path: Path, code: str, seconds: float = 60.0) -> Ended:
    return run_once((sys.executable, "-I", "-S", "-c", code), os.environ, tmp_path / "x" / "once.log", seconds)


def test_what_it_printed_on_both_channels_and_how_it_ended(tmp_path: Path) -> None:
    ended = run(tmp_path, "import sys; print('an answer'); print('a warning', file=sys.stderr)")
    assert (ended.problem, ended.exit_code, ended.left) == ("", 0, ())
    assert sorted(ended.output.splitlines()) == ["a warning", "an answer"]
    assert 0 < ended.seconds < 60


def test_it_cannot_wait_for_a_key(tmp_path: Path) -> None:
    assert run(tmp_path, "import sys; print(repr(sys.stdin.read()))").output == "''\n"


def test_a_second_run_does_not_show_the_output_of_the_first(tmp_path: Path) -> None:
    run(tmp_path, "print('first')")
    assert run(tmp_path, "print('second')").output == "second\n"


def test_an_exit_code_is_a_problem(tmp_path: Path) -> None:
    ended = run(tmp_path, "import sys; print('error: invalid argument'); sys.exit(3)")
    assert (ended.problem, ended.exit_code) == ("ended with code 3", 3)
    assert ended.output == "error: invalid argument\n"


def test_a_program_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    ended = run_once((str(tmp_path / "nope"),), os.environ, tmp_path / "once.log", 10.0)
    assert ended.problem.startswith(f"cannot start '{tmp_path / 'nope'}': ")
    assert (ended.output, ended.exit_code) == ("", None)


FORK = """
import os, sys, time
pid = os.fork()
if pid == 0:
    os.setsid()
    time.sleep(600)
print(pid, flush=True)
"""


def child(ended: Ended) -> int:
    return int(ended.output.splitlines()[0])


def test_one_that_does_not_end_is_ended_with_its_whole_tree(tmp_path: Path) -> None:
    began = time.monotonic()
    ended = run(tmp_path, FORK + "time.sleep(600)", seconds=1.0)
    assert ended.problem == "did not end within 1 s"
    assert time.monotonic() - began < 30
    assert ended.left == ()
    assert not psutil.pid_exists(child(ended))


def test_what_it_leaves_behind_is_ended_too(tmp_path: Path) -> None:
    ended = run(tmp_path, FORK)
    assert (ended.problem, ended.left) == ("", ())
    assert not psutil.pid_exists(child(ended))


def test_its_output_is_bounded(tmp_path: Path) -> None:
    ended = run(tmp_path, "import os\nfor _ in range(200): os.write(1, b'x' * 99999 + b'\\n')\nprint('the end')")
    assert len(ended.output) <= HEAD_BYTES + 2 * TAIL_BYTES + 200
    assert ended.output.endswith("the end\n")
