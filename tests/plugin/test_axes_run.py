"""Known answers under other conditions, through a whole run against a server in a process of its own."""

from __future__ import annotations

from pytest_moegpu.core.evidence import Part, RequestKind
from tests.fakes.project import Project, section

ASKED = ("-k", "axes", "--moegpu-starts=2")
SCENARIO = """
schema = 1
name = "fake-1k"
title = "Context 1,024"

[settings]
context = 1024

[workload]
prompt_tokens = 64
output_tokens = 16
requests = 3
context_fills = [0.5]
context_depths = [0.9]
axes = ["long-output", "second-turn", "cached", "concurrent", "after-requests", "not-streamed", "thinking"]
axis_output_tokens = 80
axis_requests = 6

[limits]
memory_budget = "1 GiB"
"""


def test_every_condition_has_a_line_and_is_asked_in_the_first_start_only(project: Project) -> None:
    project.write("scenarios/fake-1k", SCENARIO)
    result = project.run(*ASKED)
    assert result.parseoutcomes()["passed"] == 1
    result.stdout.fnmatch_lines(
        [
            "fake-1k *axes *long-output *80 tokens *PASS",
            "fake-1k *axes *second-turn *3 of 3 right *PASS",
            "fake-1k *axes *cached *3 of 3 right *PASS",
            "fake-1k *axes *concurrent *4 of 4 right *PASS",
            "fake-1k *axes *after-requests *6 of 6 right *PASS",
            "fake-1k *axes *not-streamed *3 of 3 right *PASS",
            "fake-1k *axes *thinking *3 of 3 right *PASS",
        ]
    )
    (evidence,) = project.last_run().evidence
    assert [Part.AXES in start.parts for start in evidence.starts] == [True, False]
    first, second = evidence.starts
    assert [len(start.of_kind(RequestKind.AXIS)) for start in (first, second)] == [24, 0]
    assert all(r.axis and r.name.startswith(r.axis) for r in first.of_kind(RequestKind.AXIS))


def test_what_is_wrong_under_one_condition_only_is_told_with_its_name_and_rate(project: Project) -> None:
    project.write("scenarios/fake-1k", SCENARIO)
    result = project.run(*ASKED, wrong_unstreamed=True)
    assert result.ret == 1
    told = section(result.stdout.str(), "FAILED  not-streamed")
    assert "3 of 3 wrong: 100.0 % (29.2 … 100.0 %)" in told
    assert "I cannot tell." in told
    assert "each of these was right when asked plainly" in told
    assert "FAILED  after-requests" not in result.stdout.str()
