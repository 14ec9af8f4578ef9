"""Is the model where it should be: all of it on the GPU, or none of it for a profile without one?"""

from __future__ import annotations

from collections.abc import Mapping

from pytest_moegpu.checks.common import broken, grouped, is_host_device, reached, with_log
from pytest_moegpu.core.evidence import Evidence, LogFacts, Phase, StartEvidence
from pytest_moegpu.core.model import DeviceKind, Profile, Scenario, Settings
from pytest_moegpu.core.units import format_bytes
from pytest_moegpu.core.verdict import FailedClass, Outcome, Verdict, worst

__all__ = ["judge", "layers_text"]

# The device must hold at least this share of the weights that the log places on it: less contradicts the log.
_MIN_SHARE_SEEN = 0.5

# Beyond this share of all weights it is not the embedding alone that lies in host memory, but experts: the embedding of
# a 35B model is below 3 %, and that of SmolLM2-135M, which is tied and so is there twice, 24 %.
_MAX_HOST_SHARE = 0.35
_EXPERTS_TO_CPU = frozenset({"-ot", "--override-tensor", "-ncmoe", "--n-cpu-moe", "-cmoe", "--cpu-moe"})

_NOTHING = "nothing on a GPU"

_Answer = tuple[Outcome, str]


def judge(evidence: Evidence, scenario: Scenario, profile: Profile) -> tuple[Verdict, ...]:
    """Judge by the server's log, corroborated by the device reading of every start.

    FAILED (environment) when layers are missing on the GPU, when the device grew by less than half of the weights the
    log places there, when much of the weights stays in host memory though all layers were asked for, or when a profile
    without a GPU has something on one; INCONCLUSIVE when the log does not say.
    """
    fault = broken(evidence, scenario, "offload")
    if fault is not None:
        return (fault,)
    starts = reached(evidence, "offload")
    on_cpu = profile.gpu.kind is DeviceKind.CPU
    answers = [_on_cpu(s) if on_cpu else _on_gpu(s, scenario.settings) for s in starts]
    outcome = worst(tuple(outcome for outcome, _ in answers))
    pairs = tuple(zip(starts, answers, strict=True))
    culprit = next(start for start, answer in pairs if answer[0] is outcome)
    said = grouped((start.number, text) for start, (found, text) in pairs if found is outcome)
    verdict = Verdict(
        outcome=outcome,
        check="offload",
        scenario=scenario.name,
        subject="model on the CPU" if on_cpu else "model on the GPU",
        phase=Phase.LOAD,
        reason="; ".join(said),
        failed_class=FailedClass.ENVIRONMENT if outcome is Outcome.FAILED else None,
        lines=_lines(culprit),
        findings=() if on_cpu else (*_not_corroborated(starts), *_on_purpose(starts, scenario.settings)),
        more={"value": _NOTHING if on_cpu and outcome.green else layers_text(culprit.log)},
    )
    return (with_log(verdict, culprit),)


def layers_text(log: LogFacts) -> str:
    """Print how many layers the log says are on the GPU, such as `40/41 layers on GPU`."""
    if log.offloaded_layers is None:
        return "layers on GPU not known"
    total = "?" if log.total_layers is None else log.total_layers
    return f"{log.offloaded_layers}/{total} layers on GPU"


def _on_gpu(start: StartEvidence, settings: Settings) -> _Answer:
    log, wanted = start.log, settings.gpu_layers
    if log.offloaded_layers is None or (log.total_layers is None and wanted is None):
        return Outcome.INCONCLUSIVE, "the log does not say how many layers are on the GPU"
    # Asking for more layers than there are is the usual way to ask for all of them.
    need = min(n for n in (wanted, log.total_layers) if n is not None)
    if log.offloaded_layers < need:
        return Outcome.FAILED, f"{layers_text(log)}, expected {need}"
    weights, peak = _device_bytes(log.model_bytes), start.peak_bytes
    if log.model_bytes and need and not weights:
        return Outcome.FAILED, f"{layers_text(log)}, but all weights are in host memory"
    if peak is not None and peak < weights * _MIN_SHARE_SEEN:
        return Outcome.FAILED, (
            f"{layers_text(log)} with {format_bytes(weights)} of weights, "
            f"but the device grew by {format_bytes(peak)} only"
        )
    if (said := _experts_left(log, settings)) and not _experts_to_cpu(settings):
        return Outcome.FAILED, f"{layers_text(log)}, but {said}"
    return Outcome.PASS, layers_text(log)


def _experts_left(log: LogFacts, settings: Settings) -> str:
    """Say how much of the weights lies in host memory, where all layers were asked for and it is too much."""
    wanted, whole = settings.gpu_layers, sum(log.model_bytes.values())
    host = whole - _device_bytes(log.model_bytes)
    some = wanted is not None and (log.total_layers is None or wanted < log.total_layers)
    if some or not whole or host / whole <= _MAX_HOST_SHARE:
        return ""
    return f"{format_bytes(host)} of {format_bytes(whole)} of weights are in host memory, as when experts stay there"


def _experts_to_cpu(settings: Settings) -> bool:
    return any(flag.partition("=")[0] in _EXPERTS_TO_CPU for flag in settings.extra_flags)


def _on_purpose(starts: tuple[StartEvidence, ...], settings: Settings) -> tuple[str, ...]:
    if not _experts_to_cpu(settings):
        return ()
    left = ((s.number, _experts_left(s.log, settings)) for s in starts)
    return grouped((number, f"{said}: a flag asks for it") for number, said in left if said)


def _on_cpu(start: StartEvidence) -> _Answer:
    log = start.log
    if log.offloaded_layers:
        return Outcome.FAILED, f"{layers_text(log)}, expected none"
    elsewhere = {name: size for name, size in log.model_bytes.items() if size and not is_host_device(name)}
    if elsewhere:
        return Outcome.FAILED, f"weights on {_sizes(elsewhere)}, expected host memory only"
    if not log.model_bytes and log.offloaded_layers is None:
        return Outcome.INCONCLUSIVE, "the log does not say where the weights are"
    return Outcome.PASS, _NOTHING


def _device_bytes(sizes: Mapping[str, int]) -> int:
    return sum(size for name, size in sizes.items() if not is_host_device(name))


def _sizes(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in sorted(sizes.items()))


def _lines(start: StartEvidence) -> tuple[tuple[str, str], ...]:
    return (("weights", _sizes(start.log.model_bytes)),) if start.log.model_bytes else ()


def _not_corroborated(starts: tuple[StartEvidence, ...]) -> tuple[str, ...]:
    said = []
    for start in starts:
        if start.peak_bytes is None:
            said.append((start.number, "not corroborated by the device: its memory was not read"))
        elif not start.log.model_bytes:
            said.append((start.number, "not corroborated by the device: the log does not give the size of the weights"))
    return grouped(said)
