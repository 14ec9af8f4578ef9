"""Any server with the chat API that OpenAI's documentation describes: attached to, never started.

Servers share `/v1/models` and `/v1/chat/completions` and little else, so nothing more is relied on.
"""

from __future__ import annotations

from typing import Any

from pytest_moegpu.backends.base import ChatRequest, EngineVersion
from pytest_moegpu.backends.recipe import Recipe, text
from pytest_moegpu.core.evidence import LogFacts
from pytest_moegpu.core.model import LaunchSpec, ModelFormat
from pytest_moegpu.errors import UserError

__all__ = ["VERSION_PATHS", "OpenAi", "read_engine"]

VERSION_PATHS = ("/version", "/api/version", "/props", "/server_info")
"""Where servers tell what they are: vLLM, Ollama, llama.cpp and SGLang, in this order."""

_ENGINES = {
    "/version": ("vLLM", "version"),
    "/api/version": ("Ollama", "version"),
    "/props": ("llama.cpp", "build_info"),
    "/server_info": ("SGLang", "version"),
}
# Not of OpenAI's API: known to vLLM, SGLang and llama.cpp, and refused by servers that check every field.
_EXTENSIONS = ("chat_template_kwargs", "ignore_eos", "cache_prompt")


class OpenAi(Recipe):
    """Recipe for a server that somebody else started.

    Args:
        extended: Whether requests may have fields that OpenAI's API does not know.
    """

    name = "openai"
    program = ""
    program_variable = ""
    install_hint = "nothing to install: give the address of a running server with --moegpu-attach=http://host:port"
    model_formats = (ModelFormat.GGUF, ModelFormat.HF)
    # Some servers honour it, and which ones is not known.
    ignores_eos = False
    continues_prefill = False
    takes_key = False

    def __init__(self, *, extended: bool = True) -> None:
        self.extended = extended

    def argv(self, spec: LaunchSpec) -> tuple[str, ...]:  # noqa: ARG002 - of the Protocol
        """There is nothing to start.

        Raises:
            UserError: Always.
        """
        raise UserError(f"backend {self.name} starts no server: {self.install_hint}")

    def environment(self, spec: LaunchSpec) -> dict[str, str]:  # noqa: ARG002 - of the Protocol
        """There is nothing to start."""
        return {}

    def read_version(self, output: str) -> EngineVersion:  # noqa: ARG002 - of the Protocol
        """No program is asked; see `read_engine`."""
        return EngineVersion()

    def read_log(self, output: str) -> LogFacts:  # noqa: ARG002 - of the Protocol
        """Its log is where it was started."""
        return LogFacts()

    def request(self, spec: LaunchSpec, chat: ChatRequest) -> dict[str, Any]:
        """Write a streamed, greedy chat request, in the words of OpenAI's API alone where the server takes no others.

        An answer cannot be begun for such a server, and `ChatRequest.thinking` cannot be said to it.
        """
        body = super().request(spec, chat) | {"cache_prompt": chat.cache_prompt}
        if self.extended:
            return body
        return {name: value for name, value in body.items() if name not in _EXTENSIONS}


def read_engine(path: str, body: Any) -> EngineVersion | None:
    """Read from the decoded answer of one of `VERSION_PATHS` which engine answers; None when it is not that one."""
    engine, key = _ENGINES[path]
    version = text(body.get(key)) if isinstance(body, dict) else None
    return EngineVersion(version=f"{engine} {version}") if version else None
