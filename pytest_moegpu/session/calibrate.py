"""Asks generated probes of a real server and keeps those that it answers right with a margin, on every path tried."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from pytest_moegpu.backends.base import ChatRequest
from pytest_moegpu.core.evidence import RequestKind, RequestRecord
from pytest_moegpu.core.model import Scenario
from pytest_moegpu.core.modelfacts import KnownAnswer
from pytest_moegpu.core.probemargins import LEAST_MARGIN, margin_of
from pytest_moegpu.core.probes import PROBES_VERSION, TIERS, probes
from pytest_moegpu.errors import UserError
from pytest_moegpu.host.files import write_atomic
from pytest_moegpu.options import Options
from pytest_moegpu.session.live import Live
from pytest_moegpu.session.progress import Progress
from pytest_moegpu.session.serving import AnyServer, server_of
from pytest_moegpu.session.target import Target, resolve

__all__ = ["Order", "Told", "as_toml", "calibrate", "write"]

_TOP_LOGPROBS = 2
# Sound changes of path, each tried alone where the backend has it.
_PATHS: dict[str, dict[str, object]] = {
    "as the scenario says": {},
    "4 slots": {"slots": 4},
    "KV cache q8_0": {"kv_cache": "q8_0"},
    "flash attention off": {"flash_attention": "off"},
    "ubatch 64": {"ubatch": 64},
}


@dataclass(frozen=True, kw_only=True)
class Order:
    """What to calibrate: the profile's own model, or these files, of which every one must pass. No tiers: all."""

    profile: str
    seed: int
    tiers: tuple[int, ...] = ()
    models: tuple[str, ...] = ()
    catalog: tuple[Path, ...] = ()


def calibrate(order: Order, progress: Progress) -> tuple[KnownAnswer, ...]:
    """Return the probes that were right with a margin on all paths, with the smallest one, as short as they can be.

    Raises:
        UserError: The profile cannot run here, or has no log-probabilities.
        StartError: A server did not come up.
    """
    passed: tuple[KnownAnswer, ...] | None = None
    for model in order.models or (None,):
        options = Options(
            profile=order.profile,
            model=model,
            catalog=order.catalog,
        )
        target = resolve(options, progress)
        try:
            if not target.backend.gives_logprobs:
                raise UserError(f"{target.backend.name} gives no log-probabilities, so there are no margins")
            for name, scenario in _paths(target):
                with tempfile.TemporaryDirectory(prefix="moegpu-calibrate-") as folder:
                    passed = _on_path(target, scenario, passed, order, Path(folder))
                progress.line(f"{target.file.quantisation}, {name}: {len(passed)} probes right with a margin")
        finally:
            target.probe.close()
    return passed or ()


def _paths(target: Target) -> Iterator[tuple[str, Scenario]]:
    scenario = target.scenarios[0]
    for name, settings in _PATHS.items():
        changed = replace(scenario, settings=replace(scenario.settings, **settings))  # type: ignore[arg-type]
        try:
            target.backend.argv(target.launch(changed))
        except UserError:
            continue
        yield name, changed


def _on_path(
    target: Target, scenario: Scenario, passed: tuple[KnownAnswer, ...] | None, order: Order, folder: Path
) -> tuple[KnownAnswer, ...]:
    live = Live(target.probe)
    server = server_of(target, scenario, folder / "server.log", str(folder))
    try:
        live.start(server, scenario.name, "")
        if passed is None:
            tried = (_shortened(server, probe) for probe in probes(order.seed, order.tiers or TIERS))
        else:
            tried = (_stands(server, probe) for probe in passed)
        return tuple(probe for probe in tried if probe is not None)
    finally:
        live.stop()
        if live.unusable:
            raise UserError(live.unusable)


def _ask(server: AnyServer, probe: KnownAnswer, tokens: int) -> RequestRecord:
    request = ChatRequest(prompt=probe.prompt, max_tokens=tokens, top_logprobs=_TOP_LOGPROBS)
    record = server.chat(request, RequestKind.ANSWER, probe.name, expect=probe.expect)
    return replace(record, rule=probe.rule)


def _with_margin(record: RequestRecord) -> float | None:
    gap = margin_of(record)
    return gap if gap is not None and gap >= LEAST_MARGIN else None


def _shortened(server: AnyServer, probe: KnownAnswer) -> KnownAnswer | None:
    """Cut an answer before its smallest gap until all that is left have a margin; None where it is not right then."""
    tokens = probe.max_tokens
    while tokens > 0:
        record = _ask(server, probe, tokens)
        if margin_of(record) is None or record.tightest is None:
            return None
        if (gap := _with_margin(record)) is not None:
            return replace(probe, max_tokens=tokens, margin=round(gap, 2))
        tokens = record.tightest.index
    return None


def _stands(server: AnyServer, probe: KnownAnswer) -> KnownAnswer | None:
    gap = _with_margin(_ask(server, probe, probe.max_tokens))
    return None if gap is None or probe.margin is None else replace(probe, margin=min(probe.margin, round(gap, 2)))


def as_toml(answers: Iterable[KnownAnswer], order: Order) -> str:
    """Write calibrated answers as the catalog reads them."""
    tiers = ", ".join(map(str, order.tiers or TIERS))
    head = (
        f"# Generated probes, version {PROBES_VERSION}, seed {order.seed}, tiers {tiers}: what passed on every path.\n"
    )
    return head + "".join(
        f"\n[[known_answers]]\nname = {_text(a.name)}\nprompt = {_text(a.prompt)}\nrule = {_text(a.rule)}\n"
        f"expect = [{', '.join(map(_text, a.expect))}]\nmargin = {a.margin}\nmax_tokens = {a.max_tokens}\n"
        for a in answers
    )


def _text(text: str) -> str:
    """Write a text as TOML does: as JSON, which escapes no more than TOML reads."""
    return json.dumps(text, ensure_ascii=False)


def write(path: Path, text: str) -> str:
    """Write the rows in one step; return a line to say so.

    Raises:
        OSError: The file cannot be written; it is as it was.
    """
    write_atomic(path, text.encode())
    return f"{path}: written; put its rows into a file of your catalog, below models/"


class Told:
    """Says on a stream what was done; the rows themselves go elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def live(self, text: str) -> None:
        """Show nothing: nobody need watch."""

    def line(self, text: str) -> None:
        """Write a line."""
        print(text, file=self._stream, flush=True)

    def done(self) -> None:
        """Leave nothing behind."""
