"""The composition root: what was asked, what was found, what was measured, and the first cause when something broke."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime

from pytest_moegpu import __version__
from pytest_moegpu.checks import get_check
from pytest_moegpu.core.evidence import Evidence, Part, Phase, StartEvidence, StartFailure
from pytest_moegpu.core.model import Scenario
from pytest_moegpu.core.record import RUN_SCHEMA, RunRecord
from pytest_moegpu.core.units import format_bytes
from pytest_moegpu.core.verdict import Verdict
from pytest_moegpu.errors import StartError
from pytest_moegpu.host.stack import host_facts
from pytest_moegpu.host.store import Bundle, RunStore
from pytest_moegpu.options import Options
from pytest_moegpu.session.attribute import Attributor
from pytest_moegpu.session.comparing import StoredComparisons
from pytest_moegpu.session.crosscheck import CROSSCHECK, cross_checked, left_behind
from pytest_moegpu.session.describe import never_started
from pytest_moegpu.session.device import held
from pytest_moegpu.session.judge import finish, untold_faults
from pytest_moegpu.session.live import Live
from pytest_moegpu.session.measure import Recorded, StartRun
from pytest_moegpu.session.needs import FIRST_START_ONLY, Needs, holds
from pytest_moegpu.session.probing import answers_of
from pytest_moegpu.session.progress import Named, Progress
from pytest_moegpu.session.question import Question
from pytest_moegpu.session.reference import GOLDEN, References
from pytest_moegpu.session.serving import AnyServer, described, marked, server_of
from pytest_moegpu.session.target import Target, resolve
from pytest_moegpu.session.workload import Workload

__all__ = ["Session"]


class Session:
    """One run. Measures a scenario once, when the first test asks for it, with the parts that all tests need.

    `store_problem` says what of the bundle could not be written first; what was measured is judged all the same.

    Raises:
        UserError: Something the caller can put right; nothing has been started.
    """

    def __init__(self, options: Options, progress: Progress, target: Target | None = None) -> None:
        RunStore(options.runs).check()
        self.options = options
        self.progress = progress
        self.target = target or resolve(options, progress)
        progress.done()
        self.started_at = datetime.now(UTC)
        self._bundle: Bundle | None = None
        self.store_problem = ""
        self.verdicts: list[Verdict] = []
        self._needs: dict[str, Needs] = {}
        self._evidence: dict[str, Evidence] = {}
        self._live = Live(self.target.probe)
        self._starts: Counter[str] = Counter()
        self._references = References(
            folder=options.baselines,
            profile=self.target.profile.name,
            backend=self.target.backend.name,
            model_sha256=self.target.file.sha256,
            given=options.golden,
        )
        self._stored = StoredComparisons(options, self.target)
        self._unusable = ""
        self._first_idle: int | None = None
        self._attributor = Attributor(
            self.target, self._references, progress, options.attribute_starts, lambda: self.unusable, self._guard
        )

    @property
    def unusable(self) -> str:
        """Why nothing more may be started on the device: what a server left behind there; empty when it is clean."""
        return self._unusable or self._live.unusable

    @property
    def faults(self) -> tuple[str, ...]:
        """Faults of a device that no test has asked about."""
        target = self.target
        return untold_faults(self._evidence.values(), self.verdicts, target.scenario, target.profile)

    @property
    def measured(self) -> Bundle | None:
        """The bundle of this run; None while nothing was started."""
        return self._bundle

    @property
    def bundle(self) -> Bundle:
        """The bundle of this run, made when it is first needed: collecting tests leaves no trace."""
        if self._bundle is None:
            store = RunStore(self.options.runs)
            self._bundle = store.create(self.target.profile.name, self.started_at.astimezone())
            self.save("running")
        return self._bundle

    def failure(self, scenario: str) -> StartFailure | None:
        """Return the first cause of a broken scenario."""
        evidence = self._evidence.get(scenario)
        return evidence.failure if evidence is not None else None

    def needs(self, scenario: str) -> Needs:
        """Return what is gathered for a scenario, to add to."""
        return self._needs.setdefault(scenario, Needs())

    def evidence(self, name: str, parts: frozenset[Part] = frozenset()) -> Evidence:
        """Return the evidence of a scenario, measured now if these parts are not there yet.

        A broken start is not tried again: its failure is in the evidence, and is the first cause for all that follows.
        """
        scenario = self.target.scenario(name)
        needs = self.needs(name)
        known = self._evidence.get(name)
        if known is not None and (known.failure is not None or holds(known, parts)):
            return known
        # Parts that no marker announced: all is measured anew, since starts of unequal parts do not pool.
        # The logs and telemetry of the earlier starts stay in the bundle under their own numbers.
        needs.parts |= parts
        if known is not None and known.starts:
            needs.parts |= {part for start in known.starts for part in start.parts}
            known = replace(known, starts=())
        return self._measure(scenario, known, self.options.starts)

    def more_starts(self, name: str, total: int) -> Evidence:
        """Go on to `total` starts of a scenario; the long context prompts are not repeated."""
        return self._measure(self.target.scenario(name), self.evidence(name), total)

    def drop_last(self, name: str) -> None:
        """Leave the last start of a scenario out of what is judged; its log and telemetry stay in the bundle."""
        evidence = self.evidence(name)
        self._evidence[name] = replace(evidence, starts=evidence.starts[:-1])

    def _measure(self, scenario: Scenario, known: Evidence | None, total: int) -> Evidence:
        self.stop_live()
        evidence = known or described(self.target, scenario, self.options.runs, self.options.catalog)
        if evidence.failure is None and not self._has_bundle():
            evidence = replace(evidence, starts=(*evidence.starts, never_started(self.store_problem)))
        if evidence.failure is not None:
            self._evidence[scenario.name] = evidence
        elif known is None:
            for told in self._stored.foretell(self.needs(scenario.name).compared, scenario):
                self.progress.line(told)
        while len(evidence.starts) < total and evidence.failure is None:
            recorded = self._one(scenario, first=not evidence.starts, place=f"{len(evidence.starts) + 1}/{total}")
            evidence = replace(
                evidence,
                starts=(*evidence.starts, recorded.start),
                stack=replace(evidence.stack, libraries=recorded.libraries or evidence.stack.libraries),
            )
            # Kept before anything is written: a full disk must not have it measured again by the next test.
            self._evidence[scenario.name] = evidence
            with self._writing():
                self.bundle.write_telemetry(scenario.name, recorded.start.number, recorded.samples, self.target.origin)
            self.save("running")
        self.progress.done()
        return evidence

    def _one(self, scenario: Scenario, *, first: bool, place: str) -> Recorded:
        needs = self.needs(scenario.name)
        # Contexts and conditions are about whether they work, not how fast: the first start answers that.
        parts = frozenset(needs.parts if first else needs.parts - FIRST_START_ONLY)
        progress = Named(self.progress, f"{scenario.name} start {place}")
        server, number = self._server(scenario)
        fills = {round(fill * scenario.settings.context) for fill in scenario.workload.context_fills}
        workload = Workload(
            server=server,
            scenario=scenario,
            answers=(*answers_of(self.target, self.options.baselines, scenario), *needs.answers),
            context_tokens=tuple(sorted(fills | needs.context_tokens)),
            recall_reach=self.target.model.recall_reach,
            enter=lambda _phase: None,
            progress=progress,
        )
        run = StartRun(
            server=server,
            probe=self.target.probe,
            number=number,
            workload=workload,
            parts=parts,
            progress=progress,
            refuse=self.unusable,
            golden=self._references.golden(scenario.name),
        )
        recorded = run.run()
        self._guard(recorded.start)
        return recorded

    def _has_bundle(self) -> bool:
        """Make the bundle if there is none yet; False, with the problem remembered, when it cannot be made."""
        try:
            return bool(self.bundle.id)
        except OSError as error:
            self.store_problem = self.store_problem or f"the run cannot be kept in {self.options.runs}: {error}"
            return False

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Remember the first write that failed instead of raising; later writes are still tried."""
        try:
            yield
        except OSError as error:
            self.store_problem = self.store_problem or f"the run could not be written completely: {error}"

    def _guard(self, start: StartEvidence) -> None:
        """Fail closed: after a start that left something behind, nothing more is started on these devices."""
        blind = start.idle_bytes is not None and start.after_bytes is None
        if start.left_over or blind or (start.failure is not None and start.failure.phase is Phase.STOP):
            cause = start.failure.cause if start.failure is not None else ""
            pids = ", ".join(map(str, start.left_over))
            self._unusable = f"start {start.number}: {cause or f'left pids {pids} behind'}"
            return
        # Against the first idle reading of the run: small remains of each start add up.
        self._first_idle = start.idle_bytes if self._first_idle is None else self._first_idle
        if rest := held(start.after_bytes, self._first_idle):
            self._unusable = f"start {start.number} left {format_bytes(rest)} on the device, held by nobody known"

    def _server(self, scenario: Scenario) -> tuple[AnyServer, int]:
        """Build a server of a scenario, not started, and its number, which also names its log."""
        self._starts[scenario.name] += 1
        number = self._starts[scenario.name]
        log_path, scratch = self.bundle.log_path(scenario.name, number), self.bundle.scratch(scenario.name, number)
        return server_of(self.target, scenario, log_path, scratch), number

    def live(self, name: str) -> AnyServer:
        """Return a running server of a scenario for tests that talk to it; one server lives at a time.

        Raises:
            StartError: The device is in use or cannot be read, or the server did not come up.
        """
        running = self._live.of(name)
        if running is None:
            self.stop_live()
            if not self._has_bundle():
                raise StartError(StartFailure(phase=Phase.PREFLIGHT, cause=self.store_problem))
            running, _ = self._server(self.target.scenario(name))
            self._live.start(running, name, self.unusable)
        return running

    def stop_live(self) -> None:
        """End the live server, if there is one."""
        self._live.stop()

    def judge(self, question: Question, name: str, rerun: str) -> tuple[Verdict, ...]:
        """Answer one question about a scenario; `rerun` is the command line that asks it again.

        Raises:
            UserError: No such check or scenario.
        """
        check = get_check(question.check)
        evidence = self.evidence(name, check.needs)
        if check.name == CROSSCHECK and evidence.oneshot is None and not self.unusable:
            self.stop_live()
            evidence = cross_checked(evidence, self.target, self.target.scenario(name), self.bundle)
            self._evidence[name], self._unusable = evidence, left_behind(evidence)
        judge = question.judge or (self._references.judge if check.name == GOLDEN else check.judge)
        scenario = self.target.scenario(name)

        def told(found: Evidence) -> tuple[Verdict, ...]:
            verdicts = judge(question.narrow(found), question.change(scenario), self.target.profile)
            return tuple(v for v in verdicts if question.only(v))

        verdicts = told(evidence)
        if self.options.attribute and self._bundle is not None:
            self.stop_live()
            answers = tuple(self.needs(name).answers)
            verdicts = self._attributor.attributed(verdicts, evidence, scenario, told, self._bundle, answers)
        return self.keep(verdicts, rerun)

    def compare(self, metric: str, name: str, rerun: str) -> tuple[Verdict, ...]:
        """Compare one metric of a scenario with its baseline, with more starts while that can settle it."""
        comparison = self._stored.comparison(metric, name)
        self.needs(name).compared[metric] = None
        evidence = self.evidence(name, comparison.needs)
        verdict = self._stored.judge(comparison, evidence, lambda total: self.more_starts(name, total))
        return self.keep((verdict,), rerun)

    def keep(self, verdicts: tuple[Verdict, ...], rerun: str) -> tuple[Verdict, ...]:
        """Complete verdicts with run, log and rerun line, and remember them."""
        folder = self._bundle.folder if self._bundle is not None else self.options.runs
        done = tuple(finish(marked(self.target, verdict), folder, rerun, self.target.rehearsal) for verdict in verdicts)
        self.verdicts.extend(v for v in done if v not in self.verdicts)
        return done

    def facts(self) -> tuple[tuple[str, str], ...]:
        """Return what this run is, for headers, reports and JUnit."""
        run = () if self._bundle is None else (("run", str(self._bundle.folder)),)
        return (*self.target.facts(), *run)

    def save(self, status: str) -> None:
        """Write run.json as far as things are known; nothing when nothing was started."""
        if self._bundle is None:
            return
        over = status != "running"
        record = RunRecord(
            schema=RUN_SCHEMA,
            id=self._bundle.id,
            status=status,
            started_at=self.started_at.isoformat(timespec="seconds"),
            finished_at=datetime.now(UTC).isoformat(timespec="seconds") if over else None,
            moegpu_version=__version__,
            profile=self.target.profile.name,
            command=self.options.command,
            host=host_facts(),
            asked=self.target.profile,
            scenarios=tuple(self.target.scenario(name) for name in self._evidence),
            evidence=tuple(self._evidence.values()),
            verdicts=tuple(self.verdicts),
        )
        with self._writing():
            self._bundle.write(record)

    def close(self, status: str) -> None:
        """End whatever still runs, write the bundle for the last time, let go of the device."""
        try:
            self.stop_live()
        finally:
            try:
                self.save(status)
            finally:
                self.target.probe.close()
