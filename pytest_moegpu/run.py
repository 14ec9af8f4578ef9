"""One pytest run with a profile. Registered as a plugin only then, so that a run without --moegpu never imports it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_moegpu.benchmark import replay
from pytest_moegpu.checks import get_check
from pytest_moegpu.core.evidence import StartFailure
from pytest_moegpu.core.gate import decide
from pytest_moegpu.core.verdict import Outcome, Verdict, worst
from pytest_moegpu.errors import MarkerError, StartError, UserError
from pytest_moegpu.options import Options, catalog_folders
from pytest_moegpu.questions import add_needs, questions
from pytest_moegpu.report.junit import properties, suite_properties
from pytest_moegpu.report.markdown import summary
from pytest_moegpu.report.terminal import failure_text, results_table
from pytest_moegpu.rerun import rerun_line
from pytest_moegpu.session import Session
from pytest_moegpu.session.question import Question
from pytest_moegpu.specs import Spec, read
from pytest_moegpu.terminal import TerminalProgress, real_stdout

if TYPE_CHECKING:
    from pytest_moegpu.session.server import Server

__all__ = ["Run", "list_profiles", "suite_folder"]

_SUITE_ORDER = ("preflight", "offload", "output", "context", "memory", "throughput", "baseline")


def list_profiles(config: pytest.Config) -> list[str]:
    """Return what --moegpu=list prints: each profile and what it needs."""
    from pytest_moegpu.session.doctor import profile_lines

    return profile_lines(catalog_folders(config))


def suite_folder() -> Path:
    """Where the plugin's own tests are: inside the installed package, or beside it in a checkout."""
    inside = Path(__file__).parent / "suites"
    return inside if inside.is_dir() else Path(__file__).parent.parent / "suites"


class Run:
    """Hooks and services of a run that measures."""

    def __init__(self, config: pytest.Config, session: Session, own_suites: bool) -> None:
        self.config = config
        self.session = session
        self.own_suites = own_suites
        self.told: StartFailure | None = None
        self.outcomes: dict[str, Outcome] = {}
        self.passed = 0
        self.interrupted = False

    @classmethod
    def open(cls, config: pytest.Config) -> Run:
        """Find profile, GPU, program and model, and make the plugin's own suites the default paths.

        Raises:
            UserError: Something the caller can put right.
        """
        _refuse_xdist(config)
        options = Options.from_config(config)
        own = config.args_source is not pytest.Config.ArgsSource.ARGS
        session = Session(options, TerminalProgress(real_stdout()))
        if own:
            config.args[:] = [str(suite_folder())]
        return cls(config, session, own)

    # Collection

    def select(self, items: list[pytest.Item], specs: Mapping[pytest.Item, Spec]) -> None:
        """Drop tests above the level or of scenarios not asked for, group the plugin's own tests by scenario."""
        target, level = self.session.target, self.session.options.level
        asked = {s.name for s in target.scenarios} if target.restricted else None
        out = {
            item
            for item, spec in specs.items()
            if spec.level > level or (asked is not None and spec.scenario is not None and spec.scenario not in asked)
        }
        if out:
            self.config.hook.pytest_deselected(items=[item for item in items if item in out])
            items[:] = [item for item in items if item not in out]
        if self.own_suites:
            order = {s.name: number for number, s in enumerate(self.session.target.scenarios)}
            items.sort(key=lambda item: (order.get(_parameter(item) or "", len(order)), _rank(item)))

    def gather(self, items: list[pytest.Item]) -> None:
        """Note what each scenario must be measured for, after everything that deselects tests.

        Raises:
            MarkerError: A scenario that does not exist, or a context that it does not have.
        """
        for item in items:
            spec = read(item)
            name = _parameter(item) or (spec.scenario if spec is not None else None)
            if spec is None or name is None:
                continue
            try:
                add_needs(self.session, name, spec)
            except UserError as error:
                raise MarkerError(f"{item.nodeid}: {error}") from error

    def parametrize(self, metafunc: pytest.Metafunc) -> None:
        """Give the test the scenario its marker names, or each of the run in turn."""
        marker = metafunc.definition.get_closest_marker("moegpu")
        wanted = marker.kwargs.get("scenario") if marker else None
        names = [wanted] if isinstance(wanted, str) else [s.name for s in self.session.target.scenarios]
        metafunc.parametrize("moegpu_scenario", names, indirect=True)

    # Judging

    def live(self, scenario: str) -> Server:
        """Return a live server, or fail the test with phase, cause and log."""
        try:
            return self.session.live(scenario)
        except StartError as error:
            pytest.fail(self._told(error.failure, scenario), pytrace=False)

    def verify(
        self, request: pytest.FixtureRequest, scenario: str, checks: tuple[str, ...], baseline: str | None
    ) -> tuple[Verdict, ...]:
        """Judge what a test asks, record it on the test, and turn it into pytest's outcome."""
        node: pytest.Item = request.node
        found: list[Verdict] = []

        def rerun(keyword: str) -> str:
            return rerun_line(node, scenario, self.session.options, keyword, own_suite=self.own_suites)

        if baseline is not None:
            found += self.session.compare(baseline, scenario, rerun(baseline))
        for question in self._questions(node, checks, asked_otherwise=baseline is not None):
            found += self.session.judge(question, scenario, rerun(question.keyword or question.check))
        verdicts = tuple(found)
        node.user_properties.extend(properties(verdicts))
        for verdict in verdicts:
            if verdict.check == "throughput" and verdict.metric in ("decode", "prefill"):
                replay(request, verdict, self.session.facts())
        self._settle(node, scenario, verdicts)
        return verdicts

    def _questions(self, node: pytest.Item, checks: tuple[str, ...], asked_otherwise: bool) -> tuple[Question, ...]:
        if checks:
            return tuple(Question(check=get_check(name).name) for name in checks)
        if asked_otherwise:
            return ()
        spec = read(node)
        asked = questions(spec) if spec is not None else ()
        if not asked:
            raise MarkerError(
                f"{node.nodeid}: nothing to judge: add a marker such as @pytest.mark.moegpu_output(), "
                'or name a check: moegpu_verify("offload")'
            )
        return asked

    def _settle(self, node: pytest.Item, scenario: str, verdicts: tuple[Verdict, ...]) -> None:
        outcome = worst(tuple(v.outcome for v in verdicts)) if verdicts else Outcome.ERROR
        self.outcomes[node.nodeid] = outcome
        if outcome.green:
            return
        failure = self.session.failure(scenario)
        if failure is not None and outcome is Outcome.ERROR and failure is self.told:
            # The first cause was told once; the same again under every test would bury it.
            pytest.skip(f"not judged: {failure.phase}: {failure.cause}")
        if outcome is Outcome.NO_BASELINE and not self.session.options.gate:
            reason = next(v.reason for v in verdicts if v.outcome is Outcome.NO_BASELINE)
            pytest.skip(f"NO_BASELINE: {reason}")
        if failure is not None:
            self.told = failure
        text = "\n\n".join(failure_text(v) for v in verdicts if not v.outcome.green) or "nothing was judged"
        pytest.fail(text, pytrace=False)

    def _told(self, failure: StartFailure, scenario: str) -> str:
        return failure_text(
            Verdict(
                outcome=Outcome.ERROR,
                check="server",
                scenario=scenario,
                subject="server",
                phase=failure.phase,
                reason=failure.cause,
                log_path=failure.log_path,
                log_tail=failure.log_tail,
            )
        )

    def suite_properties(self) -> tuple[tuple[str, str], ...]:
        """Return provenance and the number of tests of each outcome, for the JUnit suite."""
        counts = {outcome: list(self.outcomes.values()).count(outcome) for outcome in Outcome}
        named = tuple((f"moegpu.tests.{outcome}", str(count)) for outcome, count in counts.items() if count)
        return (*suite_properties(self.session.facts()), *named)

    # pytest's hooks

    def pytest_report_header(self) -> list[str]:
        """Say what is measured on what, before anything starts."""
        facts = self.session.facts()
        return ["moegpu: " + "; ".join(f"{name} {value}" for name, value in facts if value != "none")]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count tests that used the GPU and passed: a run without one is not green."""
        if report.when == "call" and report.passed and report.nodeid in self.outcomes:
            self.passed += 1

    def pytest_keyboard_interrupt(self) -> None:
        """Remember that the run was interrupted, so that its bundle says so."""
        self.interrupted = True

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """End what still runs, close the bundle, and turn a run that measured nothing red."""
        self.session.close("interrupted" if self.interrupted else "finished")
        if exitstatus == pytest.ExitCode.OK and not self.passed and not self.config.option.collectonly:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
        self._write_step_summary()

    def _write_step_summary(self) -> None:
        """Add the results to the page of a GitHub job; a page that cannot be written does not change the outcome."""
        path = os.environ.get("GITHUB_STEP_SUMMARY")
        if not path or not self.session.verdicts:
            return
        title = f"pytest-moegpu: {self.session.target.profile.name}"
        try:
            with Path(path).open("a", encoding="utf-8") as file:
                file.write(summary(self.session.verdicts, title, self.session.facts()) + "\n")
        except OSError as error:
            warnings.warn(pytest.PytestWarning(f"GITHUB_STEP_SUMMARY: cannot write {path}: {error}"), stacklevel=1)

    def summarise(self, reporter: pytest.TerminalReporter) -> None:
        """Write the table of verdicts, the decision, and where the bundle is."""
        verdicts = self.session.verdicts
        if self.config.option.collectonly:
            return
        reporter.section("moegpu")
        if verdicts:
            reporter.write_line(results_table(verdicts))
            reporter.write_line("")
        decision = decide(verdicts, gate=self.session.options.gate)
        if not self.outcomes:
            reporter.write_line("NOTHING MEASURED: no test judged anything on this machine, so this run is not green.")
        else:
            reporter.write_line(decision.headline)
        if self.session.measured is not None:
            folder = _short(self.session.measured.folder)
            keep = f"    keep it as baseline: moegpu promote {folder}" if decision.exit_code == 0 else ""
            reporter.write_line(f"run {folder}{keep}")


def _short(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _rank(item: pytest.Item) -> int:
    name = item.path.stem.removeprefix("test_")
    return _SUITE_ORDER.index(name) if name in _SUITE_ORDER else len(_SUITE_ORDER)


def _parameter(item: pytest.Item) -> str | None:
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("moegpu_scenario") if callspec is not None else None


def _refuse_xdist(config: pytest.Config) -> None:
    workers = config.getoption("numprocesses", None)
    if workers or hasattr(config, "workerinput"):
        raise UserError(
            f"-n {workers or 'N'} with --moegpu: one server at a time owns the GPU, so tests cannot run in parallel; "
            "leave -n away or use -n 0"
        )
