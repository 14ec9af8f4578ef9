"""What is known about a server that was there before, what is not, and how its evidence says so."""

from __future__ import annotations

from dataclasses import replace

from pytest_moegpu.catalog import Catalog
from pytest_moegpu.core.evidence import Evidence, Preflight
from pytest_moegpu.core.identity import NOT_KNOWN
from pytest_moegpu.core.model import DeviceKind, ModelFile, Profile
from pytest_moegpu.core.modelfacts import ModelFacts
from pytest_moegpu.errors import UserError
from pytest_moegpu.session.attached import processes_of
from pytest_moegpu.session.attaching import Attachment
from pytest_moegpu.session.chosen import GENERAL_ANSWERS

__all__ = ["attached_evidence", "attached_model", "must_be_here", "not_judged"]

# Load time, memory before the load and placement are what a baseline and these checks rest on.
_NEVER_KNOWN = ("memory", "baseline")
_ELSEWHERE = ("preflight", "offload", "stability")
# What a scenario says and a request carries; all other settings are those of whoever started the server.
_OF_REQUESTS = ("settings.context", "settings.thinking")
_OF_MACHINE = ("gpu.", "os.", "memory.")


def must_be_here(attachment: Attachment, profile: Profile) -> None:
    """Make sure that a profile of a GPU is not measured against a server of another machine.

    Raises:
        UserError: It would be: the probe reads the GPU of this machine.
    """
    if not attachment.own and profile.gpu.kind is DeviceKind.GPU:
        raise UserError(
            f"--moegpu-attach={attachment.address} is another machine, and profile {profile.name} reads the GPU of "
            "this one: run pytest there, or take a profile without a GPU"
        )


def attached_model(attachment: Attachment, catalog: Catalog, profile: Profile) -> tuple[ModelFacts, ModelFile]:
    """Return what is known of the model by the name it is served under; its file is not known.

    A name of the catalog is believed, whatever folder, tag and letter case it has. Of another model nothing is known:
    it is asked general questions, and its context is taken to be that of the profile's model.
    """
    known = {model.name: model for model in catalog.models()}
    name = attachment.model.rpartition("/")[2].removesuffix(":latest").removesuffix(".gguf").lower()
    facts = known.get(name)
    if facts is None:
        unknown = replace(known[profile.model], name=name, title=attachment.model, recall_reach=None)
        facts = replace(unknown, known_answers=known[GENERAL_ANSWERS].known_answers)
    served = f"{NOT_KNOWN}: served as {attachment.model}"
    return facts, ModelFile(path=attachment.address, size_bytes=0, sha256=served, quantisation=NOT_KNOWN)


def not_judged(attachment: Attachment, *, tells_placement: bool) -> tuple[str, ...]:
    """Return the checks, and metrics, of the plugin's own suites that have nothing to judge here.

    Args:
        attachment: The server.
        tells_placement: Whether it says itself how much of the model is on a GPU.
    """
    placement = () if tells_placement else ("offload",)
    prefill = () if attachment.tells_cached else ("prefill",)
    return tuple(dict.fromkeys((*_NEVER_KNOWN, *placement, *(() if attachment.own else _ELSEWHERE), *prefill)))


def attached_evidence(evidence: Evidence, attachment: Attachment) -> Evidence:
    """Return the evidence of a scenario, described as if it were about to be started, as that of an attached server."""
    identity = {name: _known(name, text, attachment) for name, text in evidence.identity.items()}
    stack = replace(evidence.stack, program=None)
    if not attachment.own:
        stack = replace(stack, driver=None, cuda_driver=None, toolkit=None, kernel=None)
    return replace(
        evidence,
        attached=attachment.address,
        gpus=evidence.gpus if attachment.own else (),
        identity=dict(sorted((identity | {"attached": attachment.place}).items())),
        stack=stack,
        preflight=_preflight(evidence, attachment) if attachment.own else Preflight(),
    )


def _known(name: str, text: str, attachment: Attachment) -> str:
    if (name.startswith("settings.") and name not in _OF_REQUESTS) or name == "environment":
        return f"{NOT_KNOWN}: attached"
    if not attachment.own and name.startswith(_OF_MACHINE):
        return f"{NOT_KNOWN}: another machine"
    return text


def _preflight(evidence: Evidence, attachment: Attachment) -> Preflight:
    """Return the devices as they would be without the server, as far as the driver gives its share of the memory."""
    before, tree = evidence.preflight, processes_of(attachment.pid)
    ours = [process for process in before.processes if process.pid in tree]
    others = tuple(process for process in before.processes if process.pid not in tree)
    if not ours:
        on_gpu = any(gpu.kind is DeviceKind.GPU for gpu in evidence.gpus)
        note = (
            "processes of the attached server are not seen on the device: behind a proxy, in a container, or not there"
        )
        # Any of those that are seen may be it, so none is accused.
        return replace(before, processes=(), notes=(*before.notes, note)) if on_gpu else before
    sizes = [process.used_bytes for process in ours if process.used_bytes is not None]
    known = before.idle_bytes is not None and len(sizes) == len(ours)
    idle = max(0, (before.idle_bytes or 0) - sum(sizes)) if known else None
    return replace(before, processes=others, idle_bytes=idle)
