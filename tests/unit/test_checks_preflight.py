from __future__ import annotations

from typing import Any

import pytest

from pytest_moegpu.checks import CHECKS, get_check
from pytest_moegpu.checks.preflight import judge
from pytest_moegpu.core.evidence import DeviceProcess, Evidence, Part, Phase, Preflight, StartFailure
from pytest_moegpu.core.model import DeviceKind, Stack
from pytest_moegpu.core.units import GIB, MIB
from pytest_moegpu.core.verdict import FailedClass, Outcome, Verdict
from pytest_moegpu.errors import UserError
from tests.unit.builders import evidence, gpu, profile, scenario, start


def one(run: Evidence, **limits: Any) -> Verdict:
    (verdict,) = judge(run, scenario(**limits), profile())
    return verdict


def test_right_and_idle_passes_and_names_the_stack() -> None:
    verdict = one(evidence())
    assert verdict.outcome is Outcome.PASS
    assert ("stack", "driver 580.159; CUDA driver 13.0") in verdict.lines
    assert verdict.findings == ()


def test_wrong_gpu_lists_every_difference() -> None:
    verdict = one(evidence(gpus=(gpu(name="NVIDIA T4", memory_bytes=15 * GIB), gpu(index=1))))
    assert (verdict.outcome, verdict.failed_class) == (Outcome.FAILED, FailedClass.ENVIRONMENT)
    assert "found 2 devices, expected 1" in verdict.reason
    assert "device 0 is NVIDIA T4, expected NVIDIA GeForce RTX 3090" in verdict.reason
    assert "has 15.00 GiB of memory, expected at least 24.00 GiB" in verdict.reason


def test_foreign_process_is_named_with_pid_and_size() -> None:
    tenant = DeviceProcess(pid=4711, device=0, name="python", used_bytes=2 * GIB)
    verdict = one(evidence(preflight=Preflight(idle_bytes=2 * GIB, free_bytes=22 * GIB, processes=(tenant,))))
    assert verdict.outcome is Outcome.FAILED
    assert verdict.reason == "in use by python (pid 4711, 2.00 GiB)"


def test_too_little_free_memory_fails() -> None:
    verdict = one(evidence(preflight=Preflight(idle_bytes=0, free_bytes=400 * MIB)), memory_reserve_bytes=GIB)
    assert verdict.outcome is Outcome.FAILED
    assert verdict.reason == "only 400 MiB free, at least 1.00 GiB must be"


def test_missing_idle_reading_is_inconclusive() -> None:
    assert one(evidence(preflight=Preflight())).outcome is Outcome.INCONCLUSIVE


def test_unknown_processes_are_inconclusive() -> None:
    note = "processes on the device are not known: no permission"
    verdict = one(evidence(preflight=Preflight(idle_bytes=10 * MIB, free_bytes=23 * GIB, notes=(note,))))
    assert (verdict.outcome, verdict.reason) == (Outcome.INCONCLUSIVE, note)


def test_memory_that_nobody_listed_holds_is_inconclusive() -> None:
    verdict = one(evidence(preflight=Preflight(idle_bytes=2 * GIB, free_bytes=22 * GIB)))
    assert verdict.outcome is Outcome.INCONCLUSIVE
    assert verdict.reason == "2.00 GiB in use before the start, and no process is listed that holds it"
    assert one(evidence(preflight=Preflight(idle_bytes=1536 * MIB, free_bytes=22 * GIB))).outcome is Outcome.PASS


def test_a_processor_is_right_and_never_called_idle() -> None:
    run = evidence(
        gpus=(gpu(name="x86_64", kind=DeviceKind.CPU),), preflight=Preflight(idle_bytes=3 * GIB, free_bytes=GIB)
    )
    (verdict,) = judge(run, scenario(), profile(DeviceKind.CPU))
    assert (verdict.outcome, verdict.reason) == (Outcome.PASS, "the right processor")


def test_unknown_facts_are_findings() -> None:
    run = evidence(gpus=(gpu(power_limit_watts=None, persistence=False),), stack=Stack())
    verdict = one(run)
    assert verdict.outcome is Outcome.PASS
    assert verdict.findings[0] == "not known: driver, CUDA driver, power limit"
    assert "persistence mode is off" in verdict.findings[1]


def test_no_device_is_an_error() -> None:
    verdict = one(evidence(gpus=()))
    assert verdict.outcome is Outcome.ERROR
    assert verdict.reason == "nothing was measured: no device was identified"


def test_later_failure_does_not_blame_the_device() -> None:
    failure = StartFailure(phase=Phase.LOAD, cause="exit code 1")
    assert one(evidence(start(failure=failure))).outcome is Outcome.PASS
    early = StartFailure(phase=Phase.PREFLIGHT, cause="driver and library differ")
    assert one(evidence(start(failure=early))).outcome is Outcome.ERROR


def test_table_is_in_rank_order() -> None:
    correctness_first = ["preflight", "offload", "output", "golden", "axes", "context"]
    assert list(CHECKS) == [*correctness_first, "memory", "stability", "throughput", "crosscheck"]
    assert [c.rank for c in CHECKS.values()] == sorted(c.rank for c in CHECKS.values())
    assert [c.level for c in CHECKS.values()] == [1, 1, 1, 2, 3, 3, 2, 1, 2, 3]


def test_a_check_of_the_device_has_it_worked() -> None:
    assert get_check("stability").needs == {Part.OUTPUT}


def test_unknown_check_offers_the_nearest() -> None:
    assert get_check("memory") is CHECKS["memory"]
    with pytest.raises(UserError, match="did you mean 'throughput'"):
        get_check("troughput")
