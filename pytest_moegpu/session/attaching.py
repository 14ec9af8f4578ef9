"""Which running server to attach to: its address, its key, the model to ask for, and what it says it is."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from pytest_moegpu.backends.base import Backend, ChatRequest, EngineVersion
from pytest_moegpu.backends.openai import VERSION_PATHS, OpenAi, read_engine
from pytest_moegpu.core.evidence import RequestKind, RequestRecord
from pytest_moegpu.core.model import LaunchSpec, Limits, Settings
from pytest_moegpu.errors import UserError, nearest
from pytest_moegpu.host.addresses import reach
from pytest_moegpu.host.control import Control, listener, parsed
from pytest_moegpu.session.conversation import Conversation

__all__ = ["KEY_VARIABLE", "MODELS_PATH", "NO_KEY", "Attachment", "attach", "hidden", "read_address"]

KEY_VARIABLE = "MOEGPU_API_KEY"
MODELS_PATH = "/v1/models"
NO_KEY = "none"
"""Sent where no key is given: a header may not lack its value, and a server without keys ignores it."""

_OPTION = "--moegpu-attach"
_ANSWER_SECONDS = 10.0
# One answer is asked for before anything is measured; a model may have to be loaded for it.
_TRIAL = Limits(request_seconds=300.0)
_MOST_NAMES = 10
# Ollama's tag of a model that was named without one.
_LATEST = ":latest"
_REFUSED_FIELD = (400, 422)


@dataclass(frozen=True, kw_only=True)
class Attachment:
    """A server that somebody else started. `pid` is its listener's, where it is on this machine and may be seen.

    `own` tells whether the address is one of this machine; only then its devices are those that the probe reads.
    `listed` when it lists the models it serves, `tells_cached` when it says how much of a prompt came from its cache.
    """

    host: str
    port: int
    ip: str
    own: bool
    api_key: str = field(repr=False)
    model: str
    engine: EngineVersion
    pid: int | None = None
    listed: bool = True
    tells_cached: bool = False

    @property
    def address(self) -> str:
        """Where it is, as it is given on the command line."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @property
    def place(self) -> str:
        """The class of its address, which is part of the identity."""
        return "this machine" if self.own else "another machine"

    def spec(self, settings: Settings) -> LaunchSpec:
        """Return what is said to it: there is no program, and no file."""
        return LaunchSpec(
            program=(),
            model_path="",
            model_name=self.model,
            settings=settings,
            host=self.host,
            port=self.port,
            api_key=self.api_key,
        )


def attach(address: str, model: str | None, backend: Backend) -> tuple[Backend, Attachment]:
    """Find a running server, and have it answer once; returns with it the backend that it understands.

    Args:
        address: Value of the option.
        model: The name to ask for; None takes the only one it serves.
        backend: How to talk to it.

    Raises:
        UserError: It cannot be reached, refuses the key, or speaks too little of the API to be measured.
    """
    host, port = read_address(address)
    key = _key()
    try:
        reached = reach(host, port)
    except UserError as error:
        raise UserError(f"{_OPTION}={address}: {error}") from error
    control = Control(host, port, key, _ANSWER_SECONDS)
    names = _names(control, address, key)
    owner = listener(reached.ip, port) if reached.own else None
    found = Attachment(
        host=host,
        port=port,
        ip=reached.ip,
        own=reached.own,
        api_key=key,
        model=_chosen(names, model, address),
        engine=_engine(control),
        pid=owner.pid if owner is not None else None,
        listed=bool(names),
    )
    backend, record = _tried(found, backend, address)
    return backend, replace(found, tells_cached=record.cached_tokens is not None)


def read_address(text: str) -> tuple[str, int]:
    """Return host and port of an address such as `http://localhost:8000`; `/v1` at its end means nothing more.

    Raises:
        UserError: It is not of this form, or asks for HTTPS.
    """
    example = "give it as http://host:port"
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        port = parts.port
    except ValueError as error:
        raise UserError(f"{_OPTION}={text}: {error}; {example}") from error
    if parts.username is not None or parts.password is not None:
        raise UserError(f"{_OPTION}: no user or password in the address; give the key in {KEY_VARIABLE}")
    if parts.scheme == "https":
        raise UserError(
            f"{_OPTION}={text}: HTTPS is not spoken, because its decryption would be part of every time measured; give "
            "the server's own plain address, run pytest beside it, or use a tunnel such as ssh -L"
        )
    if parts.scheme != "http" or not parts.hostname or parts.query or parts.fragment:
        raise UserError(f"{_OPTION}={text}: not an address of a server; {example}")
    if parts.path.rstrip("/") not in ("", "/v1"):
        raise UserError(f"{_OPTION}={text}: a path other than /v1 is not supported; {example}")
    return parts.hostname, port or 80


def hidden(text: str, key: str) -> str:
    """Return a text without the key, which some servers repeat when they refuse it."""
    return text if key == NO_KEY else text.replace(key, f"<{KEY_VARIABLE}>")


def _key() -> str:
    key = os.environ.get(KEY_VARIABLE, "").strip()
    if not all("!" <= letter <= "~" for letter in key):
        raise UserError(f"{KEY_VARIABLE}: a key is printable ASCII without spaces; what is set there is not")
    return key or NO_KEY


def _refused_key(status: int | None, key: str) -> str:
    if status not in (401, 403):
        return ""
    what = f"give the key in {KEY_VARIABLE}" if key == NO_KEY else f"the key in {KEY_VARIABLE} is not one it takes"
    return f"HTTP {status}: {what}"


def _names(control: Control, address: str, key: str) -> tuple[str, ...]:
    """Return the names of the models it serves; none when it does not list them."""
    answer = control.get(MODELS_PATH)
    if answer is None:
        raise UserError(
            f"{_OPTION}={address}: something listens there, but gave no HTTP answer within {_ANSWER_SECONDS:g} s; is "
            "it HTTPS, or no server of this kind?"
        )
    if refused := _refused_key(answer[0], key):
        raise UserError(f"{_OPTION}={address}: {refused}")
    body = parsed(answer)
    listed = body.get("data") if isinstance(body, dict) else None
    entries = listed if isinstance(listed, list) else []
    names = (entry.get("id") for entry in entries if isinstance(entry, dict))
    return tuple(dict.fromkeys(name for name in names if isinstance(name, str)))


def _chosen(names: tuple[str, ...], wanted: str | None, address: str) -> str:
    serves = ", ".join(names[:_MOST_NAMES]) + (f" and {len(names) - _MOST_NAMES} more" if names[_MOST_NAMES:] else "")
    if wanted is not None:
        if wanted not in names and f"{wanted}{_LATEST}" in names:
            return f"{wanted}{_LATEST}"
        if names and wanted not in names:
            raise UserError(
                f"--moegpu-model={wanted}: {address} does not serve it{nearest(wanted, names)}; it serves {serves}"
            )
        return wanted
    if not names:
        raise UserError(f"{address} lists no model at {MODELS_PATH}: name the one to ask for with --moegpu-model=NAME")
    if len(names) > 1:
        raise UserError(f"{address} serves several models: choose one with --moegpu-model=NAME: {serves}")
    return names[0]


def _engine(control: Control) -> EngineVersion:
    for path in VERSION_PATHS:
        if (found := read_engine(path, parsed(control.get(path)))) is not None:
            return found
    return EngineVersion()


def _tried(found: Attachment, backend: Backend, address: str) -> tuple[Backend, RequestRecord]:
    """Have it answer once, and once more in OpenAI's words alone where it refuses what goes beyond them.

    Raises:
        UserError: It does not answer, or not in a way that can be measured.
    """
    record = _answer(found, backend)
    if record.status in _REFUSED_FIELD and isinstance(backend, OpenAi):
        plain = OpenAi(extended=False)
        again = _answer(found, plain)
        if again.error is None:
            backend, record = plain, again
    if problem := _problem(record, backend, found.api_key):
        raise UserError(f"{_OPTION}={address}: {problem}")
    return backend, record


def _answer(found: Attachment, backend: Backend) -> RequestRecord:
    talk = Conversation(backend, found.spec(Settings(context=1)), _TRIAL)
    return talk.chat(ChatRequest(prompt="Say hello.", max_tokens=4), RequestKind.READY, "trial")


def _problem(record: RequestRecord, backend: Backend, key: str) -> str:
    """Say why a server that answers like this cannot be measured; empty when it can."""
    if refused := _refused_key(record.status, key):
        return refused
    if record.status in (404, 405):
        said = hidden(record.error or "", key)
        return f"it has no {backend.chat_path}, or not the model: {said}"
    if record.status == 200 and record.first_event is None:
        return (
            f"{backend.chat_path} does not stream: without the time of each token nothing can be measured "
            f"({record.error})"
        )
    if record.error is not None:
        return f"it does not answer: {hidden(record.error, key)}"
    if record.first_token is None:
        return "it answers without a single token"
    if record.prompt_tokens is None or record.token_source != "usage":
        return (
            "its streams carry no usage (stream_options.include_usage), so neither the length of a prompt nor that of "
            "an answer is known"
        )
    return ""
