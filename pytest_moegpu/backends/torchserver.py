"""What vLLM and SGLang share: packages on an interpreter that can be asked, vLLM's chat API, Triton's need for FP8.

SGLang has taken over vLLM's additions to OpenAI's chat API.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from pytest_moegpu.backends.base import ChatRequest, Delta, Post
from pytest_moegpu.backends.recipe import Recipe, refuse
from pytest_moegpu.core.golden import ScoreMethod, TokenScore
from pytest_moegpu.core.model import DeviceKind, LaunchSpec
from pytest_moegpu.errors import UserError

__all__ = ["TorchServer", "capability", "prompt_score", "refused_fp8", "this_gpu"]

# An installation without its metadata has them in its own modules.
_VERSIONS = """
import importlib, importlib.metadata
for name, module in {packages!r}:
    try:
        print(name, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        print(name, importlib.import_module(module).__version__)
"""
_FP8_CAPABILITY = (8, 9)


class TorchServer(Recipe):
    """Recipe of a server of the packages named in `version_modules`, which run on PyTorch."""

    name: str
    score_method = ScoreMethod.PROMPT
    version_modules: ClassVar[Mapping[str, str]] = {}
    """Packages whose versions are asked for, each with the module that has it too."""

    def version_argv(self, program: Sequence[str]) -> tuple[str, ...]:
        """Ask the interpreter for the packages' versions where the program shows it, else the program itself."""
        if "-m" not in program:
            return super().version_argv(program)
        packages = (*self.version_modules.items(), ("torch", "torch.version"))
        return (*program[: program.index("-m")], "-c", _VERSIONS.format(packages=packages))

    def refuse_on_device(
        self, spec: LaunchSpec, unable: Mapping[str, str], on_gpu: Mapping[str, str], on_cpu: Mapping[str, str]
    ) -> None:
        """Make sure that nothing is asked that the engine cannot do on this kind of device.

        Args:
            spec: What is asked for.
            unable: Settings that it has nowhere, as `refuse` takes them.
            on_gpu: Those that it has on a processor only.
            on_cpu: Those that it has on a GPU only.

        Raises:
            UserError: One of them was set.
        """
        by_device = on_cpu if spec.device_kind is DeviceKind.CPU else on_gpu
        refuse(self.name, spec.settings, {**unable, **by_device})
        if spec.settings.gpu_layers:
            raise UserError(f"settings.gpu_layers: {self.name}: the profile has no GPU, so it can only be 0")

    def request(self, spec: LaunchSpec, chat: ChatRequest) -> dict[str, Any]:
        """Write a streamed, greedy chat request; a begun answer must be said to be one, or a new one is given.

        A prompt that is to miss the prefix cache gets a salt of its own: only the same prompt, sent so again, finds it.
        """
        body = super().request(spec, chat)
        if chat.prefill:
            body |= {"continue_final_message": True, "add_generation_prompt": False}
        if not chat.cache_prompt:
            body["cache_salt"] = hashlib.sha256(chat.prompt.encode()).hexdigest()[:16]
        return body

    def tokenize(self, spec: LaunchSpec, text: str) -> Post:
        """Ask for the ids, with what the model wants before a text."""
        return Post(path="/tokenize", body={"model": spec.model_name, "prompt": text, "add_special_tokens": True})

    def read_event(self, data: str) -> Delta:
        """Read one chunk. Details of the prompt, which `argv` asks for, can be left out when none of it was cached."""
        delta = super().read_event(data)
        if delta.usage is None or delta.usage.cached_tokens is not None:
            return delta
        return replace(delta, usage=replace(delta.usage, cached_tokens=0))


def prompt_score(token: int, listed: Mapping[int, float]) -> TokenScore:
    """Return the score of a token of the prompt from the log-probabilities given at its place; NaN without its own."""
    # A number that is none has no place in the order; it stands first, where it is seen.
    ranked = sorted(listed.items(), key=lambda pair: -pair[1] if math.isfinite(pair[1]) else -math.inf)
    return TokenScore(token=token, logprob=listed.get(token, math.nan), top=tuple(ranked))


def capability(spec: LaunchSpec) -> tuple[int, ...] | None:
    """Return the GPU's compute capability; None where it is not known, or where the scenario names the kernels."""
    if spec.compute_capability is None or "--attention-backend" in spec.settings.extra_flags:
        return None
    return tuple(int(part) for part in spec.compute_capability.split("."))


def this_gpu(spec: LaunchSpec) -> str:
    """Say what the GPU has in place of what is needed, and what can be done."""
    return f"and this GPU has {spec.compute_capability}; --attention-backend in settings.extra_flags names others"


def refused_fp8(spec: LaunchSpec) -> dict[str, str]:
    """Return why an FP8 cache cannot be had on this GPU, as `spell_kv` takes it; nothing where it can."""
    have = capability(spec)
    if have is None or have >= _FP8_CAPABILITY:
        return {}
    return {"fp8_e4m3": f"Triton's kernels for it need compute capability 8.9, {this_gpu(spec)}"}
