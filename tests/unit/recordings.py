"""A recipe with what its real server printed and answered (tests/data/engines), and launches to try it with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytest_moegpu.backends.base import Backend, Delta
from pytest_moegpu.core.evidence import RequestKind, RequestRecord
from pytest_moegpu.core.model import LaunchSpec, ModelFormat, Settings
from pytest_moegpu.core.sse import parse_events
from pytest_moegpu.core.timing import record

__all__ = ["Recorded"]

ENGINES = Path(__file__).parents[1] / "data" / "engines"


class Recorded:
    """`given` are the fields of a launch that are not those of a small folder at a usual place."""

    def __init__(self, recipe: Backend, *program: str, **given: Any) -> None:
        self.recipe = recipe
        self._given: dict[str, Any] = {
            "program": program,
            "model_path": "/models/smol",
            "model_name": "smol",
            "host": "127.0.0.1",
            "port": 18080,
            "api_key": "secret",
            "model_format": ModelFormat.HF,
        } | given

    def launch(self, settings: Settings | None = None, **changes: Any) -> LaunchSpec:
        """Return a launch, of a context of 2,048 tokens unless settings are given."""
        return LaunchSpec(**self._given | {"settings": settings or Settings(context=2048)} | changes)

    def flags(self, spec: LaunchSpec) -> dict[str, str]:
        """Each flag with the word that follows it."""
        argv = self.recipe.argv(spec)
        following = [*argv[1:], ""]
        return {word: behind for word, behind in zip(argv, following, strict=True) if word.startswith("--")}

    def text(self, name: str) -> str:
        """Return a recording."""
        return (ENGINES / self.recipe.name / name).read_text("utf-8")

    def answer(self, name: str) -> tuple[int, str]:
        """Return status and body of a recorded answer."""
        status, body = self.text(name).split("\n", 1)
        return int(status.removeprefix("HTTP ")), body

    def events(self, name: str) -> list[Delta]:
        """Read each event of a recorded stream that was whole."""
        data = [line[6:] for line in self.text(name).splitlines() if line.startswith("data: ")]
        assert data.pop() == "[DONE]"
        return [self.recipe.read_event(each) for each in data]

    def streamed(self, name: str) -> RequestRecord:
        """Read a recorded stream as a run does, with or without its status in front."""
        text = self.text(name)
        body = text.partition("\n")[2] if text.startswith("HTTP ") else text
        events = parse_events([(1.0, body.encode())])
        return record(RequestKind.ANSWER, name, 0.0, 200, events, self.recipe.read_event)
