"""One side of an interleaved comparison: its own program, settings and bundle, started one start at a time."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

from pytest_moegpu.catalog.schema import SCENARIOS
from pytest_moegpu.catalog.tables import read_table
from pytest_moegpu.checks import get_check
from pytest_moegpu.core.abargs import AbOrder, SideOrder
from pytest_moegpu.core.evidence import Evidence, Part
from pytest_moegpu.core.model import Scenario
from pytest_moegpu.core.verdict import Outcome, Verdict
from pytest_moegpu.errors import UserError
from pytest_moegpu.options import Options
from pytest_moegpu.session.progress import Named, Progress
from pytest_moegpu.session.question import Question
from pytest_moegpu.session.session import Session
from pytest_moegpu.session.target import Target, resolve

__all__ = ["CHECKS", "AbSide", "open_side", "with_settings"]

CHECKS = ("offload", "output", "memory", "stability", "throughput")
"""What each side is held against by itself, correctness first."""
_PARTS = frozenset({Part.OUTPUT, Part.THROUGHPUT})


@dataclass
class AbSide:
    """A session of its own with one scenario. All of its starts have the same parts."""

    name: str
    session: Session
    scenario: Scenario
    rerun: str

    @property
    def evidence(self) -> Evidence | None:
        """What was measured so far; None before the first start."""
        return self._evidence

    def __post_init__(self) -> None:
        self._evidence: Evidence | None = None

    def start(self) -> Evidence:
        """Make one more start."""
        scenario = self.scenario.name
        if self._evidence is None:
            self._evidence = self.session.evidence(scenario, _PARTS)
        else:
            self._evidence = self.session.more_starts(scenario, len(self._evidence.starts) + 1)
        return self._evidence

    def doubt(self) -> str:
        """Return why the speeds of the last start may not be believed; empty when they may, or there is none."""
        if self._evidence is None or self._evidence.failure is not None:
            return ""
        last = replace(self._evidence, starts=self._evidence.starts[-1:])
        verdicts = get_check("throughput").judge(last, self.scenario, self.session.target.profile)
        return next((v.reason for v in verdicts if v.outcome is Outcome.INCONCLUSIVE), "")

    def drop(self) -> None:
        """Leave the last start out, so that the next one takes its place."""
        self.session.drop_last(self.scenario.name)
        self._evidence = self.session.evidence(self.scenario.name)

    def judge(self, *checks: str) -> tuple[Verdict, ...]:
        """Hold this side against its own limits."""
        asked = (Question(check=check) for check in checks)
        return tuple(v for q in asked for v in self.session.judge(q, self.scenario.name, self.rerun))


def open_side(name: str, order: AbOrder, side: SideOrder, progress: Progress, command: tuple[str, ...]) -> AbSide:
    """Find everything a side needs; nothing is started.

    Raises:
        UserError: Something the caller can put right.
    """
    options = Options(
        profile=order.profile,
        scenarios=(side.scenario,) if side.scenario else (),
        server=side.server,
        model=order.model,
        devices=order.devices,
        # Later starts are made one at a time.
        starts=1,
        catalog=order.catalog,
        baselines=order.baselines,
        runs=order.runs,
        command=command,
    )
    target = resolve(options, progress)
    try:
        target = _with_scenario(target, with_settings(target.scenarios[0], side.settings, f"--{name.lower()}-set"))
        session = Session(options, Named(progress, name), target)
    except BaseException:
        target.probe.close()
        raise
    return AbSide(name=name, session=session, scenario=target.scenarios[0], rerun=" ".join(command))


def _with_scenario(target: Target, scenario: Scenario) -> Target:
    """Have only this scenario, once the backend has written its command line.

    Raises:
        UserError: It cannot.
    """
    if scenario.container is None:
        target.backend.argv(target.launch(scenario))
    return replace(target, scenarios=(scenario,))


def with_settings(scenario: Scenario, words: tuple[str, ...], option: str) -> Scenario:
    """Change launch settings, written as in a scenario file: `settings.flash_attention=off`.

    Raises:
        UserError: Not such a text, an unknown setting, or a value it does not take.
    """
    given: dict[str, object] = {}
    for word in words:
        key, equals, text = word.partition("=")
        table, _, name = key.strip().partition(".")
        if table != "settings" or not name or not equals:
            raise UserError(f"{option} {word}: write it as settings.NAME=VALUE; only launch settings may differ")
        given[name] = _value(text.strip())
    if not given:
        return scenario
    read = read_table({"settings": given}, SCENARIOS, Path(option))
    settings = replace(scenario.settings, **read["settings"])
    load = scenario.workload
    if load.prompt_tokens + load.output_tokens > settings.context:
        raise UserError(f"{option}: the prompts of scenario {scenario.name} do not fit settings.context")
    return replace(scenario, settings=settings)


def _value(text: str) -> object:
    """Read a value as TOML does; a word without quotes is a text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
