"""`moegpu ab`: two builds or two configurations of one profile, started in turn in one session and judged."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TextIO

from pytest_moegpu.core.abargs import AbOrder
from pytest_moegpu.core.blocks import looks_up_to, order
from pytest_moegpu.core.gate import decide
from pytest_moegpu.core.verdict import Outcome, Verdict
from pytest_moegpu.errors import UserError
from pytest_moegpu.report.terminal import failure_text, results_table
from pytest_moegpu.session.abjudge import AbJudge, foretold, may_differ, must_match, told
from pytest_moegpu.session.abside import CHECKS, AbSide, open_side
from pytest_moegpu.session.calibrate import Told
from pytest_moegpu.session.cooldown import CoolDown
from pytest_moegpu.session.progress import Progress
from pytest_moegpu.session.serving import described

__all__ = ["Ab", "run"]

_USAGE, _NO_ANSWER = 3, 2
_SEEDS = 2**31
_MOST_REPEATS = 4
_BEFORE_SPEED = ("offload", "output", "throughput")
_BROKEN = (Outcome.FAILED, Outcome.ERROR)


def run(asked: AbOrder, out: TextIO, err: TextIO, command: tuple[str, ...]) -> int:
    """Compare, write the page to `out` and what is being done to `err`; return the exit code of `core.gate`.

    3 when the sides cannot be compared or something asked for is not there; nothing has been started then.
    """
    progress = Told(err)
    sides: list[AbSide] = []
    try:
        looks = looks_up_to(asked.starts)
        for name, side in (("A", asked.a), ("B", asked.b)):
            sides.append(open_side(name, asked, side, progress, command))
        ab = Ab(asked, sides[0], sides[1], looks, progress)
        print("\n".join(ab.heading()), file=out, flush=True)
    except (UserError, ValueError) as error:
        _close(sides, "interrupted")
        print(f"moegpu ab: {error}", file=err)
        return _USAGE
    except BaseException:
        _close(sides, "interrupted")
        raise
    status = "interrupted"
    try:
        ab.measure()
        ab.judge()
        status = "finished"
    except KeyboardInterrupt:
        print("moegpu ab: interrupted, nothing was decided", file=err)
        return _NO_ANSWER
    finally:
        _close(sides, status)
    text, code = ab.page()
    print(text, file=out)
    return code


def _close(sides: Sequence[AbSide], status: str) -> None:
    """Let go of both, the second also when the first cannot be."""
    if sides:
        try:
            sides[0].session.close(status)
        finally:
            _close(sides[1:], status)


@dataclass
class Ab:
    """One comparison. Nothing has been started before `measure`.

    Raises:
        UserError: Something that must match differs; all such fields are listed.
    """

    asked: AbOrder
    a: AbSide
    b: AbSide
    looks: tuple[int, ...]
    progress: Progress

    def __post_init__(self) -> None:
        self.seed = secrets.randbelow(_SEEDS) if self.asked.seed is None else self.asked.seed
        self.cool_down = CoolDown(seconds=self.asked.cool_down, progress=self.progress)
        self.judged = AbJudge(self.a.session.target.profile, self.a.scenario, self.b.scenario, self.looks)
        self._found = [described(side.session.target, side.scenario) for side in self.sides]
        self.repeated: list[str] = []
        self._checked: dict[str, tuple[Verdict, ...]] = {}
        if differing := must_match(*self._found):
            raise UserError(
                f"A and B cannot be compared, for what must match differs: {'; '.join(map(str, differing))}"
            )

    @property
    def sides(self) -> tuple[AbSide, AbSide]:
        """A and B."""
        return self.a, self.b

    @property
    def unusable(self) -> str:
        """Why nothing more may be started; empty when both sides left the device as it was."""
        return self.a.session.unusable or self.b.session.unusable

    def heading(self) -> list[str]:
        """Say what is compared with what, in which order, and what can be found."""
        facts = [
            *((name, text) for name, text in self.a.session.facts() if name not in ("engine", "not judged")),
            *((side.name, _side(side)) for side in self.sides),
            ("under test", "; ".join(map(str, may_differ(*self._found))) or "nothing differs: A and B are the same"),
            ("order", f"{order(self.looks[-1], self.seed)}, seed {self.seed}; judged at {_listed(self.looks)} of each"),
            ("will see", foretold(self.looks, self.b.scenario)),
        ]
        return [f"{label:<11} {text}" for label, text in facts]

    def measure(self) -> None:
        """Make starts until all metrics are decided, a start breaks, the text is wrong, or all are made."""
        for name in order(self.looks[-1], self.seed):
            side = self.a if name == "A" else self.b
            self.cool_down.wait(side.session.target.probe)
            evidence = side.start()
            if self.unusable or evidence.failure is not None or self._wrong(side) or self._broke_again(side):
                return
            if self._looked():
                return

    def _broke_again(self, side: AbSide) -> bool:
        """Make a start again whose speeds may not be believed, a few times in all; True when that one broke.

        It is left out for what was seen beside its speeds, never for the speeds, so that no side gains by it.
        """
        while (doubt := side.doubt()) and len(self.repeated) < _MOST_REPEATS:
            self.repeated.append(f"{side.name}: {doubt}")
            self.progress.line(f"{side.name}: made again: {doubt}")
            side.drop()
            self.cool_down.wait(side.session.target.probe)
            if side.start().failure is not None or self.unusable or self._wrong(side):
                return True
        return False

    def _wrong(self, side: AbSide) -> bool:
        """Judge the first start of a side before any speed: a side that is wrong has none."""
        if side.evidence is None or len(side.evidence.starts) > 1:
            return False
        found = side.judge(*_BEFORE_SPEED)
        # A verdict on no metric says that speeds are not judged at all, and more starts cannot change it.
        blocked = any(v.check == "throughput" and v.metric is None and not v.outcome.green for v in found)
        return blocked or any(v.check != "throughput" and v.outcome in _BROKEN for v in found)

    def _looked(self) -> bool:
        """Judge where both sides have reached a planned look; True when all is decided."""
        a, b = self.a.evidence, self.b.evidence
        if a is None or b is None or len(a.starts) != len(b.starts) or len(b.starts) not in self.looks:
            return False
        self.judged.look(a, b, self.looks.index(len(b.starts)))
        return self.judged.decided

    def judge(self) -> None:
        """Hold each side against its own limits, and keep all verdicts in its bundle."""
        for side in self.sides:
            if side.evidence is not None:
                # Judged anew over all starts: what the first one said is among it, or was better then.
                side.session.verdicts.clear()
                self._checked[side.name] = side.judge(*CHECKS)
        if self.b.evidence is not None:
            self.judged.verdicts = {
                name: self.b.session.keep((self._with_repeats(verdict),), self.b.rerun)[0]
                for name, verdict in self.judged.verdicts.items()
            }

    def _with_repeats(self, verdict: Verdict) -> Verdict:
        """Say in a verdict which starts were made again."""
        return replace(verdict, lines=(*verdict.lines, *(("again", told) for told in self.repeated)))

    def page(self) -> tuple[str, int]:
        """Return the whole text and the exit code."""
        checked = [_named(v, side) for side, verdicts in self._checked.items() for v in verdicts]
        compared = [_named(v, "B against A") for v in self.judged.verdicts.values()]
        verdicts = [*checked, *compared]
        decision = decide(verdicts)
        code = decision.exit_code
        parts = [results_table(verdicts)] if verdicts else []
        parts += [failure_text(v) for v in verdicts if not v.outcome.green]
        seen = [told(v) for v in self.judged.verdicts.values()]
        if not compared:
            code = code or _NO_ANSWER
            seen = ["no speed was compared: starts broke, or a side is not right in itself, and correctness goes first"]
        seen += [f"made again, {told}" for told in self.repeated]
        ends = [*seen, f"cool-down: {self.cool_down.describe()}", decision.headline]
        if self.unusable:
            code = code or _NO_ANSWER
            ends.append(f"LEFT BEHIND: {self.unusable}. Look at the GPU before anything else is started on it.")
        ends += [f"NOT KEPT: {side.session.store_problem}" for side in self.sides if side.session.store_problem]
        ends += [f"run {side.name}  {side.session.measured.folder}" for side in self.sides if side.session.measured]
        return "\n\n".join([*parts, "\n".join(ends)]), code


def _side(side: AbSide) -> str:
    target = side.session.target
    engine = f"{target.backend.name} {target.engine.version or 'of unknown version'}"
    return f"{side.scenario.name}, {engine}, {shlex.join(target.program)}"


def _named(verdict: Verdict, side: str) -> Verdict:
    return replace(verdict, subject=f"{verdict.subject} ({side})")


def _listed(looks: tuple[int, ...]) -> str:
    return ", ".join(map(str, looks))
