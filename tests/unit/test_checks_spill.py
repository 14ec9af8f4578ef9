from __future__ import annotations

from typing import Any

import pytest

from pytest_moegpu.checks.memory import judge
from pytest_moegpu.checks.spill import GROWTH_SLACK_BYTES
from pytest_moegpu.core.evidence import Evidence, Phase, RequestRecord
from pytest_moegpu.core.health import PhaseTelemetry
from pytest_moegpu.core.model import DeviceKind
from pytest_moegpu.core.units import GIB, MIB
from pytest_moegpu.core.verdict import FailedClass, Outcome, Verdict
from tests.unit.builders import CPU_LOG, answers, evidence, gpu, phase, profile, recall, scenario, stream, watched

FULL = {"free_min_bytes": 512 * MIB, "used_max_bytes": 23 * GIB}
SLOW: dict[str, Any] = {"decode_min": 120.0, "memory_budget_bytes": 24 * GIB}


def telemetry(grown: int | None = 6 * GIB, **changes: Any) -> dict[str, tuple[PhaseTelemetry, ...]]:
    """A start that loads with 1 GiB of host memory and decodes with the device full."""
    return {
        "load": phase(host_max_bytes=None if grown is None else GIB),
        "prefill": phase(host_max_bytes=None if grown is None else 2 * GIB),
        "decode": phase(**{**FULL, "host_max_bytes": grown, **changes}),
    }


def at_depth(**changes: Any) -> dict[str, tuple[PhaseTelemetry, ...]]:
    """A start whose device is full, and whose host memory has grown, in long contexts only."""
    return {
        "load": phase(host_max_bytes=GIB),
        "decode": phase(),
        "context": phase(**{**FULL, "host_max_bytes": 6 * GIB, **changes}),
    }


SLOW_AT_DEPTH = (*answers(), stream(100.0), recall(0.5), *(recall(0.95, d, last_token=20.5) for d in (0.9, 0.1)))


def run(os_class: str = "Linux", **changes: Any) -> Evidence:
    requests = (*answers(), stream(100.0), recall(0.5), recall(0.95))
    start = watched(1, **{"telemetry": telemetry(), "requests": requests, **changes})
    return evidence(start, identity={"os.class": os_class})


def judged(found: Evidence, **limits: Any) -> tuple[Verdict, ...]:
    return judge(found, scenario(**limits), profile())


def spill(found: Evidence, **limits: Any) -> Verdict:
    _, verdict, _ = judged(found, **limits)
    assert verdict.subject == "spill to host memory"
    return verdict


def peak(found: Evidence, **limits: Any) -> Verdict:
    verdict, idle = judged(found, **limits)
    assert idle.subject == "return to idle"
    return verdict


def test_full_slow_and_grown_fails_for_memory() -> None:
    verdict = spill(run(), **SLOW)
    assert (verdict.outcome, verdict.check, verdict.failed_class) == (Outcome.FAILED, "memory", FailedClass.MEMORY)
    assert verdict.reason == (
        "start 1: VRAM was 97.9 % full in decode, the server's host memory grew from 1.00 GiB (load) to 6.00 GiB "
        "(decode), and decode was 100.0 tok/s, at least 120.0 tok/s needed"
    )
    assert verdict.lines == (("host", "host memory 1.00 GiB (load) → 6.00 GiB (decode)"),)
    assert verdict.log_path == "runs/x/server-1.log"


def test_full_slow_and_grown_in_long_contexts_fails_for_memory() -> None:
    found = run(requests=SLOW_AT_DEPTH, telemetry=at_depth())
    verdict = spill(found, memory_budget_bytes=24 * GIB)
    assert (verdict.outcome, verdict.phase) == (Outcome.FAILED, Phase.CONTEXT)
    assert verdict.reason == (
        "start 1: VRAM was 97.9 % full in context, the server's host memory grew from 1.00 GiB (load) to 6.00 GiB "
        "(context), and decode at depth was 10.0 % of short, at least 25.0 % needed"
    )
    lower = peak(found, memory_budget_bytes=24 * GIB, decode_at_depth_min_share=0.1)
    assert lower.findings[0].endswith("to 6.00 GiB (context); not slow there by any limit set")


@pytest.mark.parametrize(
    ("telemetry", "requests", "limits"),
    [
        pytest.param(
            at_depth(), (*answers(), stream(100.0), recall(0.95)), {"decode_min": 120.0}, id="slow-when-short"
        ),
        pytest.param(
            {**at_depth(), "decode": phase(**FULL), "context": phase(host_max_bytes=6 * GIB)},
            (*answers(), stream(100.0), recall(0.95)),
            {"decode_min": 120.0},
            id="full-and-slow-when-short-grown-later",
        ),
        pytest.param(telemetry(), SLOW_AT_DEPTH, {}, id="full-and-grown-when-short-slow-later"),
        pytest.param(
            {**at_depth(), "prefill": phase(**FULL, host_max_bytes=6 * GIB), "context": phase(host_max_bytes=6 * GIB)},
            SLOW_AT_DEPTH,
            {},
            id="full-before-slow-later",
        ),
    ],
)
def test_what_was_not_measured_together_is_no_spill(
    telemetry: dict[str, tuple[PhaseTelemetry, ...]], requests: tuple[RequestRecord, ...], limits: dict[str, float]
) -> None:
    verdict = peak(run(requests=requests, telemetry=telemetry), memory_budget_bytes=24 * GIB, **limits)
    assert verdict.outcome is Outcome.PASS


def test_full_and_grown_but_fast_is_a_finding() -> None:
    verdict = peak(run(), memory_budget_bytes=24 * GIB)
    assert verdict.outcome is Outcome.PASS
    assert verdict.findings == (
        "start 1: VRAM was 97.9 % full in decode, and the server's host memory grew from 1.00 GiB (load) to 6.00 GiB "
        "(decode); not slow there by any limit set",
    )
    assert ("host", "host memory 1.00 GiB (load) → 6.00 GiB (decode)") in verdict.lines


@pytest.mark.parametrize("free", [24 * GIB * 5 // 100 + 1, 12 * GIB])
def test_a_device_that_is_not_full_cannot_have_spilled(free: int) -> None:
    verdict = peak(run(telemetry=telemetry(free_min_bytes=free)), **SLOW)
    assert (verdict.outcome, verdict.findings) == (Outcome.PASS, ())


def test_growth_within_the_slack_is_the_servers_own_and_said_beside_a_slow_one() -> None:
    assert GROWTH_SLACK_BYTES == GIB
    own = run(telemetry={**telemetry(GIB + GROWTH_SLACK_BYTES), "prefill": phase()})
    verdict = peak(own, **SLOW)
    assert verdict.outcome is Outcome.PASS
    assert verdict.findings[0].endswith("but the server's host memory did not grow after loading")
    assert peak(own, memory_budget_bytes=24 * GIB).findings == ()
    more = run(telemetry={**telemetry(GIB + GROWTH_SLACK_BYTES + 1), "prefill": phase()})
    assert spill(more, **SLOW).outcome is Outcome.FAILED


def test_weights_that_were_in_host_memory_when_loading_ended_are_no_growth() -> None:
    found = run(telemetry={**telemetry(20 * GIB), "load": phase(host_max_bytes=20 * GIB)})
    assert peak(found, **SLOW).outcome is Outcome.PASS


def test_a_load_that_buffers_the_model_in_host_memory_hides_no_later_growth() -> None:
    load = phase(host_max_bytes=20 * GIB, host_last_bytes=GIB)
    verdict = spill(run(telemetry={**telemetry(), "load": load}), **SLOW)
    assert verdict.outcome is Outcome.FAILED
    assert "grew from 1.00 GiB (load) to 6.00 GiB (decode)" in verdict.reason
    assert verdict.lines == (("host", "host memory 1.00 GiB (load) → 6.00 GiB (decode)"),)


def lost(free: int | None, grown: int = GIB, **limits: Any) -> tuple[Verdict, ...]:
    """Judge a start after whose loading the system had 20 GiB available, and in decode at least this much."""
    load = phase(host_max_bytes=GIB, host_free_last_bytes=20 * GIB)
    found = run(telemetry={**telemetry(grown, host_free_min_bytes=free), "load": load})
    return judged(found, **{**SLOW, **limits})


def test_memory_of_the_system_that_no_process_of_the_server_holds_is_inconclusive() -> None:
    _, verdict, _ = lost(14 * GIB)
    assert (verdict.subject, verdict.outcome) == ("spill to host memory", Outcome.INCONCLUSIVE)
    assert (verdict.failed_class, verdict.phase) == (None, Phase.DECODE)
    assert verdict.reason == (
        "start 1: VRAM was 97.9 % full in decode and decode was 100.0 tok/s, at least 120.0 tok/s needed, and the "
        "system's free memory fell by 6.00 GiB, which no process of the server holds"
    )


def test_memory_of_the_system_that_the_server_holds_itself_or_that_hurt_no_speed_is_no_riddle() -> None:
    for free in (None, 19 * GIB, 20 * GIB):
        assert [v.outcome for v in lost(free)] == [Outcome.PASS, Outcome.PASS]
    assert [v.outcome for v in lost(18 * GIB, grown=2 * GIB)] == [Outcome.PASS, Outcome.PASS]
    assert [v.subject for v in lost(14 * GIB, decode_min=90.0)] == ["peak memory", "return to idle"]
    assert lost(14 * GIB, grown=7 * GIB)[1].outcome is Outcome.FAILED


POLICY = "the driver may use host memory, policy not known"


@pytest.mark.parametrize("os_class", ["WSL2", "Windows"])
def test_where_growth_cannot_be_seen_full_and_slow_is_enough(os_class: str) -> None:
    verdict = spill(run(os_class, telemetry=telemetry(None)), **SLOW)
    assert verdict.outcome is Outcome.FAILED
    assert verdict.reason.endswith(f"needed: on {os_class} {POLICY}")
    assert verdict.reason.startswith("start 1: VRAM was 97.9 % full in decode and decode was 100.0 tok/s")


@pytest.mark.parametrize("os_class", ["WSL2", "Windows"])
def test_where_growth_cannot_be_seen_a_full_device_is_always_said(os_class: str) -> None:
    found = run(os_class, telemetry=telemetry(None))
    unset = peak(found, memory_budget_bytes=24 * GIB)
    full = f"start 1: VRAM was 97.9 % full in decode; on {os_class} {POLICY}; "
    assert (unset.outcome, unset.findings) == (Outcome.PASS, (f"{full}set decode_min to have it judged",))
    fast = peak(found, memory_budget_bytes=24 * GIB, decode_min=90.0)
    assert fast.findings == (f"{full}not slow by any limit set",)
    early = run(os_class, telemetry={"load": phase(**FULL), "decode": phase()})
    assert peak(early, **SLOW).findings == (f"start 1: VRAM was 97.9 % full in load; on {os_class} {POLICY}",)
    assert peak(run(os_class, telemetry={"decode": phase()}), memory_budget_bytes=24 * GIB).findings == ()
    hot = {"decode": phase(**FULL, reasons={"hw_thermal": 0.5})}
    doubted = peak(run(os_class, telemetry=hot), **SLOW)
    assert doubted.findings[0].startswith(f"{full}whether it was slow is not judged: start 1: throttled in decode")


def test_where_growth_cannot_be_seen_the_parts_are_judged_apart_as_well() -> None:
    short = (*answers(), stream(100.0), recall(0.95))
    assert peak(run("WSL2", requests=short, telemetry=at_depth()), **SLOW).outcome is Outcome.PASS
    deep = spill(run("WSL2", requests=SLOW_AT_DEPTH, telemetry=at_depth()), memory_budget_bytes=24 * GIB)
    assert (deep.outcome, deep.phase) == (Outcome.FAILED, Phase.CONTEXT)


def test_host_memory_that_was_not_read_is_said() -> None:
    found = run(telemetry=telemetry(None))
    verdict = spill(found, **SLOW)
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.reason.endswith("needed, but the server's host memory was not read")
    assert verdict.lines == ()
    fast = peak(found, memory_budget_bytes=24 * GIB)
    assert fast.findings == ("start 1: VRAM was 97.9 % full in decode; the server's host memory was not read",)


def test_a_speed_in_doubt_blames_no_spill() -> None:
    hot = {
        **telemetry(),
        "prefill": phase(),
        "decode": phase(**FULL, host_max_bytes=6 * GIB, reasons={"hw_thermal": 0.5}),
    }
    verdict = peak(run(telemetry=hot), **SLOW)
    assert verdict.outcome is Outcome.PASS
    assert verdict.findings[0].endswith(
        "whether it was slow is not judged: start 1: throttled in decode: hw_thermal (50.0 % of the readings)"
    )


def test_of_several_devices_the_fullest_is_named() -> None:
    two = {
        "load": phase(),
        "decode": (*phase(host_max_bytes=6 * GIB), *phase(device=1, **FULL, host_max_bytes=None)),
    }
    found = evidence(watched(1, telemetry=two, requests=(*answers(), stream())), gpus=(gpu(), gpu(index=1)))
    assert spill(found, **SLOW).reason.startswith("start 1: VRAM of device 1 was 97.9 % full in decode, ")


def test_a_profile_without_a_gpu_has_no_spill_and_no_line_on_host_memory() -> None:
    found = evidence(watched(1, log=CPU_LOG, telemetry=telemetry()), gpus=(gpu(kind=DeviceKind.CPU),))
    verdicts = judge(found, scenario(**SLOW), profile(DeviceKind.CPU))
    assert [v.subject for v in verdicts] == ["peak memory", "return to idle"]
    assert "host" not in dict(verdicts[0].lines)
