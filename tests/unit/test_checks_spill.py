from __future__ import annotations

from typing import Any

import pytest

from pytest_moegpu.checks.memory import judge
from pytest_moegpu.checks.spill import GROWTH_SLACK_BYTES
from pytest_moegpu.core.evidence import Evidence
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


def test_slow_at_depth_is_slow() -> None:
    requests = (*answers(), stream(100.0), recall(0.5), *(recall(0.95, d, last_token=20.5) for d in (0.9, 0.1)))
    verdict = spill(run(requests=requests), memory_budget_bytes=24 * GIB)
    assert verdict.outcome is Outcome.FAILED
    assert verdict.reason.endswith("and decode at depth was 10.0 % of short, at least 25.0 % needed")
    lower = peak(run(requests=requests), memory_budget_bytes=24 * GIB, decode_at_depth_min_share=0.1)
    assert lower.findings[0].endswith("to 6.00 GiB (decode); not slow by any limit set")


def test_full_and_grown_but_fast_is_a_finding() -> None:
    verdict = peak(run(), memory_budget_bytes=24 * GIB)
    assert verdict.outcome is Outcome.PASS
    assert verdict.findings == (
        "start 1: VRAM was 97.9 % full in decode, and the server's host memory grew from 1.00 GiB (load) to 6.00 GiB "
        "(decode); not slow by any limit set",
    )
    assert ("host", "host memory 1.00 GiB (load) → 6.00 GiB (decode)") in verdict.lines


@pytest.mark.parametrize("free", [24 * GIB * 5 // 100 + 1, 12 * GIB])
def test_a_device_that_is_not_full_cannot_have_spilled(free: int) -> None:
    verdict = peak(run(telemetry=telemetry(free_min_bytes=free)), **SLOW)
    assert (verdict.outcome, verdict.findings) == (Outcome.PASS, ())


def test_growth_within_the_slack_is_the_servers_own_and_said_beside_a_slow_one() -> None:
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


@pytest.mark.parametrize("os_class", ["WSL2", "Windows"])
def test_where_growth_cannot_be_seen_full_and_slow_is_enough(os_class: str) -> None:
    verdict = spill(run(os_class, telemetry=telemetry(None)), **SLOW)
    assert verdict.outcome is Outcome.FAILED
    assert verdict.reason.endswith(f"needed: on {os_class} the driver may use host memory, policy not known")
    assert peak(run(os_class, telemetry=telemetry(None)), memory_budget_bytes=24 * GIB).outcome is Outcome.PASS


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
