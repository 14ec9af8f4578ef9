"""A server that somebody else started: asked, measured, and left as it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_moegpu.backends.base import Backend, ChatRequest
from pytest_moegpu.core.evidence import LogFacts, Phase, RequestKind, RequestRecord, StartFailure
from pytest_moegpu.core.model import Limits, Settings
from pytest_moegpu.errors import StartError
from pytest_moegpu.host.boundedlog import tail
from pytest_moegpu.host.stopreport import StopReport
from pytest_moegpu.host.treemem import TreeMemory
from pytest_moegpu.session.attaching import MODELS_PATH, Attachment, hidden
from pytest_moegpu.session.conversation import Conversation, generated

__all__ = ["AttachedServer", "processes_of"]

_HAS_NO_SUCH_PATH = (404, 405, 501)


def processes_of(pid: int | None) -> frozenset[int]:
    """Return a process and its descendants that live now; none for a process that cannot be seen."""
    tree = TreeMemory()
    tree.follow(pid)
    # A reading is what looks for children.
    tree.read()
    return tree.pids


class AttachedServer(Conversation):
    """Talks to a server that was there before, and ends nothing. Its load time and its own log are not known.

    `tree` is what listens on the address and all that descends from it, where it is on this machine and may be seen.
    """

    argv: tuple[str, ...] = ()
    load_seconds: float | None = None
    # Its names were listed, and one was chosen.
    wrong_model = ""

    def __init__(
        self, backend: Backend, attachment: Attachment, settings: Settings, limits: Limits, log_path: Path
    ) -> None:
        super().__init__(backend, attachment.spec(settings), limits)
        self.attachment = attachment
        self.log_path = log_path
        self.stopped = False
        self._processes = TreeMemory()
        self._processes.follow(attachment.pid)
        self._seen: set[int] = set()
        self._health_path: str | None = backend.health_path

    @property
    def pid(self) -> int | None:
        """Pid of the process that listens on the address; None where it cannot be seen."""
        return self.attachment.pid

    @property
    def tree(self) -> frozenset[int]:
        """Pids of the listener and its descendants, as far as they live now or lived at an earlier look."""
        # A reading is what looks for new children.
        self._processes.read()
        self._seen |= self._processes.pids
        return frozenset(self._seen)

    @property
    def alive(self) -> bool:
        """False once the process that listened is gone; where it cannot be seen, a request will tell."""
        return self.pid is None or self._processes.alive

    def start(
        self,
        spawned: Callable[[int], None] = lambda _pid: None,
        waiting: Callable[[float], None] = lambda _seconds: None,
    ) -> None:
        """Make sure that it is healthy, serves the model, and generates a token; nothing is started.

        `spawned` is called with its pid, if there is one to be seen.

        Raises:
            StartError: It does not.
        """
        waiting(0.0)
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        said = f"attached to {self.attachment.address}: this run did not start the server, so its log is not here\n"
        self.log_path.write_text(said, encoding="utf-8")
        if self.pid is not None:
            spawned(self.pid)
        elif self.attachment.own:
            self.notes.append("the process that listens on the address cannot be seen: the server's own are not known")
        if wrong := self._find_health() or self.ask_model():
            raise self.failure(Phase.READY, wrong)
        answer = self.chat(ChatRequest(prompt="Say hello.", max_tokens=1), RequestKind.READY, "ready")
        lives, what = generated(answer)
        if not lives:
            raise self.failure(Phase.READY, self.death() if not self.alive else f"it does not generate: {what}")
        if what:
            self.notes.append(what)

    def _find_health(self) -> str:
        """Find a path that tells whether it is well; return what is wrong, or an empty text."""
        answer = self.get(self.backend.health_path)
        if answer is not None and answer[0] in _HAS_NO_SUCH_PATH:
            self._health_path = MODELS_PATH if self.attachment.listed else None
            self.notes.append(f"{self.backend.health_path} is not there: its health is that of {self._health_path}")
        return self.health_at_end()

    def health_at_end(self) -> str:
        """Return an empty text when it is healthy, or has no path that tells; else what it says."""
        if self._health_path is None:
            return ""
        if self._health_path == self.backend.health_path:
            return super().health_at_end()
        answer = self.get(self._health_path)
        if answer is None:
            return f"{self._health_path} does not answer"
        return "" if answer[0] == 200 else f"{self._health_path} says HTTP {answer[0]}"

    @property
    def model_names(self) -> tuple[str, ...]:
        """The name that was chosen among those it serves, with Ollama's tag of one without a tag or not."""
        return (self.spec.model_name, self.spec.model_name.removesuffix(":latest"))

    def own_part(self, body: Any) -> Any:
        """Leave only the entries of that model in a description that lists several."""
        return _only(body, self.spec.model_name)

    def chat(self, request: ChatRequest, kind: RequestKind, name: str, **more: Any) -> RequestRecord:
        """Send one streamed request, as every conversation does; an error that repeats the key is kept without it."""
        answer = super().chat(request, kind, name, **more)
        return replace(answer, error=None if answer.error is None else hidden(answer.error, self.spec.api_key))

    def death(self) -> str:
        """Say that it is gone; why is in its own log."""
        return f"the attached server (pid {self.pid}) is gone; its own log says why"

    def log_facts(self) -> LogFacts:
        """Its log is not here."""
        return LogFacts()

    def failure(self, phase: Phase, cause: str) -> StartError:
        """Build the error of this conversation."""
        where = f"attached to {self.attachment.address}: {hidden(cause, self.spec.api_key)}"
        return StartError(
            StartFailure(phase=phase, cause=where, log_path=str(self.log_path), log_tail=tail(self.log_path))
        )

    def stop(self) -> StopReport:
        """Leave it as it is: it is not ours."""
        self.stopped = True
        return StopReport(exit_code=None)


def _only(body: Any, name: str) -> Any:
    """Leave only the entries of one model in a description that lists several."""
    if not isinstance(body, dict):
        return body
    return {key: _named(value, name) if key in ("data", "models") else value for key, value in body.items()}


def _named(entries: Any, name: str) -> Any:
    if not isinstance(entries, list):
        return entries
    return [
        entry
        for entry in entries
        if isinstance(entry, dict) and name in (entry.get("id"), entry.get("model"), entry.get("name"))
    ]
