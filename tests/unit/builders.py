"""Small evidence for the checks: a healthy run by default, one thing changed at a time by each test."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest_moegpu.core.baseline import BASELINE_SCHEMA, Baseline, BaselineSession
from pytest_moegpu.core.evidence import (
    Evidence,
    LogFacts,
    Margin,
    Part,
    Preflight,
    RequestKind,
    RequestRecord,
    StartEvidence,
)
from pytest_moegpu.core.health import DeviceHealth, KernelLog, PhaseTelemetry
from pytest_moegpu.core.model import (
    DeviceKind,
    Gpu,
    GpuRequirement,
    Limits,
    Profile,
    Scenario,
    Settings,
    Stack,
    Workload,
)
from pytest_moegpu.core.record import RUN_SCHEMA, RunRecord
from pytest_moegpu.core.units import GIB, MIB
from pytest_moegpu.core.verdict import Verdict
from pytest_moegpu.core.xid import read_line

QUESTIONS = (
    ("What is the capital of France?", "The capital of France is Paris.", "Paris"),
    ("What is two plus two?", "Two plus two is 4.", "4"),
    ("Which planet do we live on?", "We live on planet Earth, the third from the Sun.", "Earth"),
)
PROSE = (
    "The lighthouse stood at the end of a narrow spit of land, and every evening its keeper climbed the stairs "
    "to wind the clockwork that turned the lamp. Ships far out at sea took their bearings from it."
)
GPU_LOG = LogFacts(
    offloaded_layers=41,
    total_layers=41,
    model_bytes={"CUDA0": 20 * GIB, "CPU_Mapped": 300 * MIB},
    kv_bytes={"CUDA0": 500 * MIB},
    compute_bytes={"CUDA0": 400 * MIB, "CUDA_Host": 20 * MIB},
)
CPU_LOG = LogFacts(model_bytes={"CPU_Mapped": 93 * MIB}, kv_bytes={"CPU": 45 * MIB})


def gpu(**changes: Any) -> Gpu:
    card = Gpu(index=0, name="NVIDIA GeForce RTX 3090", memory_bytes=24 * GIB, power_limit_watts=350.0)
    card = replace(card, pci_bus_id="00000000:0F:00.0", pcie_generation_max=4, pcie_width_max=16)
    return replace(card, **changes)


def profile(kind: DeviceKind = DeviceKind.GPU, **changes: Any) -> Profile:
    names = ("NVIDIA GeForce RTX 3090",) if kind is DeviceKind.GPU else ()
    memory = 24 * GIB if kind is DeviceKind.GPU else 0
    base = Profile(
        name="rtx3090",
        title="one card",
        probe="replay",
        backend="llamacpp",
        model="m",
        gpu=GpuRequirement(names=names, memory_bytes=memory, kind=kind),
        scenarios=("balanced-6k",),
    )
    return replace(base, **changes)


def scenario(*, settings: Settings | None = None, workload: Workload | None = None, **limits: Any) -> Scenario:
    return Scenario(
        name="balanced-6k",
        title="balanced",
        settings=settings or Settings(context=2048),
        workload=workload or Workload(context_fills=(0.5, 0.95), context_depths=(0.9, 0.1)),
        limits=Limits(**limits),
    )


def answers() -> tuple[RequestRecord, ...]:
    return tuple(
        RequestRecord(
            kind=RequestKind.ANSWER,
            name=f"answer-{i}",
            sent=float(i),
            prompt=prompt,
            text=text,
            expect=(word,),
            margin=2.5,
            finish_reason="stop",
        )
        for i, (prompt, text, word) in enumerate(QUESTIONS)
    )


def stream(rate: float = 100.0, **changes: Any) -> RequestRecord:
    """A throughput request of 101 tokens, one an event: TTFT 0.5 s, prefill 2000 tok/s, decode `rate` tok/s."""
    record = RequestRecord(
        kind=RequestKind.THROUGHPUT,
        name="throughput",
        sent=10.0,
        first_event=10.4,
        first_token=10.5,
        last_token=10.5 + 100 / rate,
        finished=10.6 + 100 / rate,
        prompt_tokens=1000,
        cached_tokens=0,
        output_tokens=101,
        wanted_output_tokens=101,
        token_source="usage",
        gaps=(1 / rate,) * 100,
        text=PROSE,
        finish_reason="length",
        status=200,
        prompt="Tell me of a lighthouse.",
        client_lag=0.0001,
    )
    return replace(record, **changes)


def recall(fill: float, depth: float = 0.9, **changes: Any) -> RequestRecord:
    """A context request whose answer is right and comes at 80 tok/s."""
    record = stream(
        80.0,
        kind=RequestKind.CONTEXT,
        name=f"context-{fill}-{depth}",
        prompt_tokens=int(fill * 2048),
        fill=fill,
        depth=depth,
        expect=("heron",),
        text="The password in the letter was heron, as the note near the end of the text says.",
        finish_reason="stop",
    )
    return replace(record, **changes)


def contexts() -> tuple[RequestRecord, ...]:
    return tuple(recall(fill, depth) for fill in (0.5, 0.95) for depth in (0.9, 0.1))


def margin(nat: float, token: str = "L", other: str = "The", index: int = 0) -> Margin:
    """A gap at the first token, where the one chosen has -1.96 nat."""
    return Margin(index=index, nat=nat, logprob=-1.96, token=token, other=other)


def beyond(**changes: Any) -> RequestRecord:
    """A prompt of 1.3 contexts of 2048 tokens, refused in words."""
    record = RequestRecord(
        kind=RequestKind.BEYOND,
        name="beyond-2662",
        sent=20.0,
        finished=20.1,
        status=400,
        error="HTTP 400: request (2670 tokens) exceeds the available context size (2048 tokens)",
        prompt="one. two.",
        fill=2662 / 2048,
        too_long=True,
    )
    return replace(record, **changes)


def kernel(*lines: str, problem: str = "", seconds: float | None = None) -> KernelLog:
    """The kernel log of a start with these lines about GPUs, all at one moment of the kernel's clock."""
    messages = tuple(message for line in lines if (message := read_line(line, seconds)) is not None)
    assert len(messages) == len(lines), "a line that the reader would drop"
    return KernelLog(source="/dev/kmsg", problem=problem, messages=messages)


def health(**changes: Any) -> DeviceHealth:
    """One look at a device with ECC memory on which nothing ever happened."""
    quiet = DeviceHealth(
        device=0,
        ecc_corrected=0,
        ecc_uncorrected=0,
        rows_remapped_corrected=0,
        rows_remapped_uncorrected=0,
        remap_pending=False,
        remap_failed=False,
        pcie_replays=0,
        power_limit_watts=350.0,
        temperature_c=34.0,
    )
    return replace(quiet, **changes)


def phase(**changes: Any) -> tuple[PhaseTelemetry, ...]:
    """The telemetry of one device in one phase: 1800 MHz at the power cap, 70 °C, half of the memory in use."""
    quiet = PhaseTelemetry(
        device=0,
        readings=1000,
        seconds=10.0,
        sm_clock_mhz=1800.0,
        temperature_max_c=70.0,
        pcie_generation=4,
        pcie_width=16,
        used_max_bytes=12 * GIB,
        free_min_bytes=12 * GIB,
        host_max_bytes=GIB,
        reason_readings=250,
        reasons={"sw_power_cap": 0.6},
    )
    return (replace(quiet, **changes),)


def watched(number: int = 1, **changes: Any) -> StartEvidence:
    """A start of which all was read that a GPU and its kernel can tell, and nothing happened."""
    whole = start(
        number,
        telemetry={name: phase() for name in ("load", "output", "prefill", "decode", "context")},
        event_reasons=dict.fromkeys(("load", "output", "prefill", "decode", "context"), 0x4),
        health_before=(health(),),
        health_after=(health(temperature_c=60.0),),
        kernel=kernel(),
        sampler_gap=0.011,
        pid=4321,
    )
    return replace(whole, **changes)


def start(number: int = 1, **changes: Any) -> StartEvidence:
    whole = StartEvidence(
        number=number,
        started_at="2026-11-30T10:00:00Z",
        parts=tuple(Part),
        load_seconds=4.0,
        idle_bytes=10 * MIB,
        after_bytes=10 * MIB,
        return_seconds=0.2,
        peaks={"load": 20 * GIB, "decode": 21 * GIB},
        samples=100,
        requests=(*answers(), *(stream() for _ in range(3)), *contexts()),
        log=GPU_LOG,
        event_reasons={"prefill": 0, "decode": 0x4},
        log_path=f"runs/x/server-{number}.log",
        log_tail=("loading", "ready"),
    )
    return replace(whole, **changes)


def evidence(*starts: StartEvidence, **changes: Any) -> Evidence:
    run = Evidence(
        profile="rtx3090",
        scenario="balanced-6k",
        backend="llamacpp",
        gpus=(gpu(),),
        stack=Stack(driver="580.159", cuda_driver="13.0"),
        identity={},
        preflight=Preflight(idle_bytes=10 * MIB, free_bytes=23 * GIB, total_bytes=24 * GIB),
        starts=starts or (start(1), start(2)),
    )
    return replace(run, **changes)


def run_record(*found: Evidence, verdicts: tuple[Verdict, ...] = (), **changes: Any) -> RunRecord:
    """A finished run with this evidence."""
    record = RunRecord(
        schema=RUN_SCHEMA,
        id="20261130-100000-rtx3090-0001",
        status="finished",
        started_at="2026-11-30T10:00:00+00:00",
        finished_at="2026-11-30T10:05:00+00:00",
        moegpu_version="0.1.0",
        profile="rtx3090",
        command=("pytest", "--moegpu=rtx3090"),
        host={"host": "rig"},
        evidence=found,
        verdicts=verdicts,
    )
    return replace(record, **changes)


def baseline(*decode: float, **changes: Any) -> Baseline:
    """A baseline with one session of decode values, by default five of about 100 tok/s."""
    session = BaselineSession(
        run="20261129-100000-rtx3090-0000",
        recorded_at="2026-11-30T10:00:00+00:00",
        metrics={"decode": decode or (99.0, 100.0, 100.5, 101.0, 100.2)},
    )
    base = Baseline(
        schema=BASELINE_SCHEMA,
        profile="rtx3090",
        scenario="balanced-6k",
        backend="llamacpp",
        check_version=1,
        identity={},
        stack=Stack(driver="580.159", cuda_driver="13.0"),
        sessions=(session,),
        units={"decode": "tok/s"},
        better={"decode": "higher"},
    )
    return replace(base, **changes)
