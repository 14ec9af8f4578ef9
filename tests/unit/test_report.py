from __future__ import annotations

from dataclasses import replace

from pytest_moegpu.core.evidence import Phase
from pytest_moegpu.core.units import GIB
from pytest_moegpu.core.verdict import FailedClass, Outcome, Verdict
from pytest_moegpu.report.junit import properties, suite_properties
from pytest_moegpu.report.markdown import summary
from pytest_moegpu.report.terminal import failure_text, results_table, summary_line

# Seven values around 115.4 whose spread is 0.9 %, as in the design's example.
BASELINE = (114.0, 114.5, 114.8, 115.4, 116.0, 116.4, 116.8)

REGRESSED = Verdict(
    outcome=Outcome.REGRESSED,
    check="baseline",
    scenario="balanced-6k",
    subject="decode",
    phase=Phase.COMPARE,
    failed_class=FailedClass.PERFORMANCE,
    metric="decode",
    value=96.1,
    values=(95.7, 96.0, 96.1, 96.3, 96.8),
    baseline=115.4,
    baseline_values=BASELINE,
    change=-0.167,
    interval=(-0.179, -0.152),
    confidence=0.99,
    allowed=-0.05,
    smallest_loss=0.024,
    lines=(
        ("rerun", "pytest --moegpu=rtx3090 --moegpu-scenario=balanced-6k -k decode"),
        ("changed", "driver 570.x → 580.x, CUDA 12.8 → 13.0"),
        ("same", "GPU, model, flags, engine"),
        ("valid", "no throttling"),
        ("valid", "GPU idle before start; 40/40 layers on GPU; client lag 0.1 ms"),
    ),
    log_path=".moegpu/runs/<id>/server.log",
    log_tail=tuple(f"line {i}" for i in range(25)),
)
PASSED = Verdict(
    outcome=Outcome.PASS,
    check="output",
    scenario="balanced-6k",
    subject="known answers",
    phase=Phase.OUTPUT,
    reason="9 of 9 right",
    more={"value": "9 of 9 right"},
)
OVER = Verdict(
    outcome=Outcome.FAILED,
    check="memory",
    scenario="balanced-6k",
    subject="peak memory",
    phase=Phase.PREFILL,
    failed_class=FailedClass.MEMORY,
    reason="1.00 GiB over the budget of the scenario",
    metric="peak_memory",
    value=23.0 * GIB,
    values=(22.5 * GIB, 23.0 * GIB),
    limit=22.0 * GIB,
    lines=(("parts", "weights 20.00 GiB, KV 500 MiB"),),
    findings=("start 1: only 3 memory readings",),
)
BROKEN = Verdict(
    outcome=Outcome.ERROR,
    check="output",
    scenario="a|b",
    subject="output",
    phase=Phase.LOAD,
    reason="the server exited",
    lines=(("starts", "start 2 of 3 broke"), ("expected", "'a <b> | ```c'")),
    log_tail=("boom",),
)


def test_failure_text_is_that_of_the_design() -> None:
    head = """\
REGRESSED  decode 96.1 tok/s, baseline 115.4 (-16.7 %, 99 % interval -17.9 … -15.2), allowed -5 %      phase compare
  starts   95.7 96.0 96.1 96.3 96.8      baseline 7 starts, CV 0.9 %; smallest loss this run could see: 2.4 %
  changed  driver 570.x → 580.x, CUDA 12.8 → 13.0      same: GPU, model, flags, engine
  valid    no throttling; GPU idle before start; 40/40 layers on GPU; client lag 0.1 ms
  log      .moegpu/runs/<id>/server.log (last 20 lines below)
  rerun    pytest --moegpu=rtx3090 --moegpu-scenario=balanced-6k -k decode"""
    tail = [f"    line {i}" for i in range(5, 25)]
    assert failure_text(REGRESSED).splitlines() == [*head.splitlines(), *tail]


def test_starts_of_a_compared_metric_are_told_once() -> None:
    said = replace(REGRESSED, lines=(("starts", "as another module puts it"), *REGRESSED.lines))
    assert failure_text(said) == failure_text(REGRESSED)


def test_failure_text_against_a_limit() -> None:
    assert (
        failure_text(OVER)
        == """\
FAILED  peak memory 23.00 GiB, limit at most 22.00 GiB      phase prefill, class memory
  reason   1.00 GiB over the budget of the scenario
  starts   22.50 GiB, 23.00 GiB
  parts    weights 20.00 GiB, KV 500 MiB
  finding  start 1: only 3 memory readings"""
    )


def test_failure_text_without_numbers() -> None:
    assert (
        failure_text(BROKEN)
        == """\
ERROR  output: the server exited      phase load
  starts    start 2 of 3 broke
  expected  'a <b> | ```c'
  log       last line below
    boom"""
    )
    assert failure_text(replace(PASSED, reason="")) == "PASS  known answers      phase output"


def test_failure_text_of_a_thin_comparison() -> None:
    thin = replace(
        REGRESSED, baseline_values=(115.4,), interval=None, smallest_loss=None, lines=(("same", "GPU"),), log_tail=()
    )
    assert failure_text(thin).splitlines() == [
        "REGRESSED  decode 96.1 tok/s, baseline 115.4 (-16.7 %), allowed -5 %      phase compare",
        "  starts   95.7 96.0 96.1 96.3 96.8      baseline 1 start, CV not known; "
        "smallest loss this run could see: none",
        "  same     GPU",
        "  log      .moegpu/runs/<id>/server.log",
    ]


def test_text_of_several_lines_stays_aligned() -> None:
    said = failure_text(replace(PASSED, reason="one\ntwo", lines=(("got", "a\nb"),)))
    assert said == "PASS  known answers: one two      phase output\n  got      a\n           b"


def test_results_table_and_summary_line() -> None:
    assert (
        results_table((REGRESSED, PASSED, OVER))
        == """\
scenario     check     what           value         starts       baseline     change    outcome
-----------  --------  -------------  ------------  -----------  -----------  --------  ---------
balanced-6k  baseline  decode         96.1 tok/s    5, CV 0.4 %  115.4 tok/s  -16.7 %   REGRESSED
balanced-6k  output    known answers  9 of 9 right                                      PASS
balanced-6k  memory    peak memory    23.00 GiB     2, CV 1.6 %                         FAILED"""
    )
    assert summary_line((PASSED, OVER, PASSED)) == "1 FAILED, 2 PASS"
    assert summary_line(()) == "nothing was judged"


def test_markdown() -> None:
    assert (
        summary((PASSED, BROKEN), "rtx3090 <now>", (("GPU", "RTX 3090 | 24 GiB"), ("driver", "580.159")))
        == """\
## rtx3090 &lt;now&gt;

**ERROR**: 1 ERROR, 1 PASS

|        |                    |
|--------|--------------------|
| GPU    | RTX 3090 \\| 24 GiB |
| driver | 580.159            |

| scenario    | check   | what          | value        | starts   | baseline   | change   | outcome   |
|-------------|---------|---------------|--------------|----------|------------|----------|-----------|
| balanced-6k | output  | known answers | 9 of 9 right |          |            |          | PASS      |
| a\\|b        | output  | output        |              |          |            |          | ERROR     |

<details><summary>ERROR a|b output: output</summary>

````text
ERROR  output: the server exited      phase load
  starts    start 2 of 3 broke
  expected  'a <b> | ```c'
  log       last line below
    boom
````

</details>
"""
    )


def test_markdown_of_nothing_is_not_green() -> None:
    assert summary((), "rtx3090", ()) == "## rtx3090\n\n**ERROR**: nothing was judged\n"


def test_junit_properties() -> None:
    assert properties((PASSED, REGRESSED)) == (
        ("moegpu.outcome", "REGRESSED"),
        ("moegpu.class", "performance"),
        ("moegpu.phase", "compare"),
        ("moegpu.scenario", "balanced-6k"),
        ("moegpu.check", "output, baseline"),
        ("moegpu.decode", "96.1 tok/s"),
        ("moegpu.decode.starts", "95.7 tok/s, 96.0 tok/s, 96.1 tok/s, 96.3 tok/s, 96.8 tok/s"),
        ("moegpu.decode.baseline", "115.4 tok/s"),
        ("moegpu.decode.change", "-16.7 %"),
    )
    assert ("moegpu.peak_memory.limit", "22.00 GiB") in properties((OVER,))
    assert properties(()) == (("moegpu.outcome", "ERROR"), ("moegpu.reason", "nothing was judged"))


def test_junit_suite_properties() -> None:
    assert suite_properties((("GPU", "H200"), ("CUDA driver", "13.0"))) == (
        ("moegpu.gpu", "H200"),
        ("moegpu.cuda_driver", "13.0"),
    )
