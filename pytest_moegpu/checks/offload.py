"""Is the model where it should be: all of it on the GPU, or none of it for a profile without one?"""

from __future__ import annotations

from collections.abc import Mapping

from pytest_moegpu.checks.common import broken, grouped, is_host_device, reached, with_log
from pytest_moegpu.core.evidence import Evidence, LogFacts, Phase, StartEvidence
from pytest_moegpu.core.model import ALL_LAYERS, DeviceKind, Profile, Scenario, Settings
from pytest_moegpu.core.units import format_bytes, format_percent
from pytest_moegpu.core.verdict import FailedClass, Outcome, Verdict, worst

__all__ = ["judge", "placement"]

# The device must hold at least this share of the weights that the log places on it: less contradicts the log.
_MIN_SHARE_SEEN = 0.5

# Where a part of the weights stays in host memory on purpose: attention alone is more of any mixture of experts.
_MIN_SHARE_OF_A_PART = 0.05

# Beyond this share of all weights it is not the embedding alone that lies in host memory, but experts: the embedding of
# a 35B model is below 3 %, and that of SmolLM2-135M, which is tied and so is there twice, 24 %.
_MAX_HOST_SHARE = 0.35
_EXPERTS_TO_CPU = frozenset({"-ot", "--override-tensor", "-ncmoe", "--n-cpu-moe", "-cmoe", "--cpu-moe"})

# These can place some of the layers, and say how many: for them the memory of a device alone proves nothing.
_PLACE_LAYERS = frozenset({"llamacpp", "ollama"})

# What is missing to all of it is the rounding of two sizes.
_ALL_OF_IT = 0.999

_NOTHING = "nothing on a GPU"

_Answer = tuple[Outcome, str]


def judge(evidence: Evidence, scenario: Scenario, profile: Profile) -> tuple[Verdict, ...]:
    """Judge by what the server says: layers, else its own share, else where its weights are, else by the device alone.

    FAILED (environment) when layers or a share are missing on the GPU, when the device grew by less than half of the
    weights said to be there, or of the model where nothing is said, when much of the weights stays in host memory
    though all was asked for, or when a profile without a GPU has something on one; INCONCLUSIVE when neither the server
    nor the device tells.
    """
    fault = broken(evidence, scenario, "offload")
    if fault is not None:
        return (fault,)
    starts = reached(evidence, "offload")
    on_cpu = profile.gpu.kind is DeviceKind.CPU
    answers = [_on_cpu(s, evidence) if on_cpu else _on_gpu(s, scenario.settings, evidence) for s in starts]
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
        findings=() if on_cpu else (*_not_corroborated(starts, evidence), *_on_purpose(starts, scenario.settings)),
        more={"value": _NOTHING if on_cpu and outcome.green else placement(culprit)},
    )
    return (with_log(verdict, culprit),)


def placement(start: StartEvidence) -> str:
    """Print what is known of where the model is, such as `40/41 layers on GPU`."""
    log = start.log
    if log.offloaded_layers is not None:
        total = "?" if log.total_layers is None else log.total_layers
        return f"{log.offloaded_layers}/{total} layers on GPU"
    if start.gpu_share is not None:
        return f"{format_percent(start.gpu_share, signed=False)} of the model on GPU"
    if weights := _device_bytes(log.model_bytes):
        return f"{format_bytes(weights)} of weights on GPU"
    return "layers on GPU not known"


def _on_gpu(start: StartEvidence, settings: Settings, evidence: Evidence) -> _Answer:
    if start.log.offloaded_layers is not None:
        return _by_layers(start, settings, evidence)
    if settings.gpu_layers == 0:
        return Outcome.PASS, "no layers were asked for on the GPU"
    if start.gpu_share is not None:
        return _by_share(start, settings, evidence)
    if start.log.model_bytes:
        return _by_weights(start, settings, evidence)
    return _by_growth(start, settings, evidence)


def _by_layers(start: StartEvidence, settings: Settings, evidence: Evidence) -> _Answer:
    log, wanted = start.log, settings.gpu_layers
    if log.offloaded_layers is None or (log.total_layers is None and wanted is None):
        return Outcome.INCONCLUSIVE, "the log does not say how many layers are on the GPU"
    # Asking for more layers than there are is the usual way to ask for all of them.
    need = min(n for n in (wanted, log.total_layers) if n is not None)
    if log.offloaded_layers < need:
        return Outcome.FAILED, f"{placement(start)}, expected {need}"
    if log.model_bytes and need and not _device_bytes(log.model_bytes):
        return Outcome.FAILED, f"{placement(start)}, but all weights are in host memory"
    if said := _contradicted(start, _device_bytes(log.model_bytes), evidence):
        return Outcome.FAILED, f"{placement(start)} {said}"
    if (said := _experts_left(log, settings)) and not _asked_for(settings):
        return Outcome.FAILED, f"{placement(start)}, but {said}"
    return Outcome.PASS, placement(start)


def _by_share(start: StartEvidence, settings: Settings, evidence: Evidence) -> _Answer:
    """Judge by the share that the server gives, as Ollama does: of the model with all its buffers."""
    share = start.gpu_share or 0.0
    if share < _ALL_OF_IT and not (share and _in_part(settings)):
        return Outcome.FAILED, f"{placement(start)}, expected {'a part' if _in_part(settings) else 'all'} of it"
    whole = _model_bytes(evidence)
    if whole is not None and (said := _contradicted(start, round(share * whole), evidence)):
        return Outcome.FAILED, f"{placement(start)} {said}"
    return Outcome.PASS, placement(start)


def _by_weights(start: StartEvidence, settings: Settings, evidence: Evidence) -> _Answer:
    """Judge by the devices on which the log of an engine without layers places the weights."""
    weights = _device_bytes(start.log.model_bytes)
    if not weights:
        return Outcome.FAILED, "all weights are in host memory"
    if said := _contradicted(start, weights, evidence):
        return Outcome.FAILED, f"the log tells of a GPU {said}"
    if (said := _experts_left(start.log, settings)) and not _asked_for(settings):
        return Outcome.FAILED, f"{placement(start)}, but {said}"
    return Outcome.PASS, placement(start)


def _by_growth(start: StartEvidence, settings: Settings, evidence: Evidence) -> _Answer:
    """Judge by the device alone, where the server says nothing: it must have taken at least half of the model."""
    peak, whole = start.peak_bytes, _model_bytes(evidence)
    silent = "the log does not say where the weights are"
    if evidence.backend in _PLACE_LAYERS:
        return Outcome.INCONCLUSIVE, "the log does not say how many layers are on the GPU"
    if evidence.attached:
        return Outcome.INCONCLUSIVE, f"{silent}, and the server was there before this run"
    if peak is None or whole is None or start.foreign:
        return Outcome.INCONCLUSIVE, f"{silent}, and the device does not tell"
    grew, of = f"the device grew by {format_bytes(peak)}", f"for a model of {format_bytes(whole)}"
    if peak >= whole * (_MIN_SHARE_OF_A_PART if _in_part(settings) else _MIN_SHARE_SEEN):
        return Outcome.PASS, f"{grew} {of}"
    if settings.extra_flags:
        return Outcome.INCONCLUSIVE, f"{silent}, and {grew} only, {of}: did extra_flags make it smaller?"
    return Outcome.FAILED, f"{silent}, and {grew} only, {of}"


def _contradicted(start: StartEvidence, weights: int, evidence: Evidence) -> str:
    """Say that the device took much less than the weights that are said to be there; empty when it did not."""
    peak = start.peak_bytes
    if evidence.attached or peak is None or peak >= weights * _MIN_SHARE_SEEN:
        return ""
    return f"with {format_bytes(weights)} of weights, but the device grew by {format_bytes(peak)} only"


def _model_bytes(evidence: Evidence) -> int | None:
    noted = evidence.noted.get("model.bytes", "")
    return int(noted) if noted.isdigit() and int(noted) else None


def _in_part(settings: Settings) -> bool:
    """Tell whether a part of the model stays in host memory on purpose."""
    some = settings.gpu_layers is not None and settings.gpu_layers < ALL_LAYERS
    return some or bool(_asked_for(settings))


def _experts_left(log: LogFacts, settings: Settings) -> str:
    """Say how much of the weights lies in host memory, where all layers were asked for and it is too much."""
    wanted, whole = settings.gpu_layers, sum(log.model_bytes.values())
    host = whole - _device_bytes(log.model_bytes)
    some = wanted is not None and (log.total_layers is None or wanted < log.total_layers)
    if some or not whole or host / whole <= _MAX_HOST_SHARE:
        return ""
    return f"{format_bytes(host)} of {format_bytes(whole)} of weights are in host memory, as when experts stay there"


def _asked_for(settings: Settings) -> str:
    """Name what puts experts or other weights into host memory on purpose; empty when nothing does."""
    if settings.cpu_expert_layers or settings.host_weights_bytes:
        return "a setting"
    return "a flag" if any(flag.partition("=")[0] in _EXPERTS_TO_CPU for flag in settings.extra_flags) else ""


def _on_purpose(starts: tuple[StartEvidence, ...], settings: Settings) -> tuple[str, ...]:
    if not (what := _asked_for(settings)):
        return ()
    left = ((s.number, _experts_left(s.log, settings)) for s in starts)
    return grouped((number, f"{said}: {what} asks for it") for number, said in left if said)


def _on_cpu(start: StartEvidence, evidence: Evidence) -> _Answer:
    log = start.log
    if log.offloaded_layers or start.gpu_share:
        return Outcome.FAILED, f"{placement(start)}, expected none"
    elsewhere = {name: size for name, size in log.model_bytes.items() if size and not is_host_device(name)}
    if elsewhere:
        return Outcome.FAILED, f"weights on {_sizes(elsewhere)}, expected host memory only"
    if log.model_bytes or log.offloaded_layers is not None or start.gpu_share is not None:
        return Outcome.PASS, _NOTHING
    return _by_host_memory(start, evidence)


def _by_host_memory(start: StartEvidence, evidence: Evidence) -> _Answer:
    """Judge an engine that says nothing by the memory of its processes, in which the model must then be."""
    silent = "the log does not say where the weights are"
    if named := [name for name in start.log.devices if not is_host_device(name)]:
        return Outcome.INCONCLUSIVE, f"{silent}, and names {', '.join(named)}"
    peak, whole = start.peak_bytes, _model_bytes(evidence)
    if evidence.backend in _PLACE_LAYERS:
        return Outcome.INCONCLUSIVE, silent
    if peak is None or evidence.attached:
        return Outcome.INCONCLUSIVE, f"{silent}, and its memory does not tell"
    if whole is not None and peak < whole * _MIN_SHARE_SEEN:
        return Outcome.INCONCLUSIVE, (
            f"{silent}, and its processes grew by {format_bytes(peak)} only, with a model of {format_bytes(whole)}"
        )
    return Outcome.PASS, f"{_NOTHING}: no device is named, and its processes hold {format_bytes(peak)}"


def _device_bytes(sizes: Mapping[str, int]) -> int:
    return sum(size for name, size in sizes.items() if not is_host_device(name))


def _sizes(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in sorted(sizes.items()))


def _lines(start: StartEvidence) -> tuple[tuple[str, str], ...]:
    return (("weights", _sizes(start.log.model_bytes)),) if start.log.model_bytes else ()


def _not_corroborated(starts: tuple[StartEvidence, ...], evidence: Evidence) -> tuple[str, ...]:
    said = []
    for start in starts:
        if evidence.attached:
            said.append((start.number, "not corroborated by the device: the server was there before this run"))
        elif start.peak_bytes is None:
            said.append((start.number, "not corroborated by the device: its memory was not read"))
        elif start.log.offloaded_layers is not None and not start.log.model_bytes:
            said.append((start.number, "not corroborated by the device: the log does not give the size of the weights"))
    return grouped(said)
