"""One pytest run with a profile. Registered as a plugin only then, so that a run without --moegpu never imports it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_moegpu.benchmark import replay
from pytest_moegpu.checks import get_check
from pytest_moegpu.closing import section, step_summary
from pytest_moegpu.core.evidence import StartFailure
from pytest_moegpu.core.verdict import METRICS, Outcome, Verdict
from pytest_moegpu.errors import MarkerError, StartError, UserError, nearest
from pytest_moegpu.options import Options, catalog_folders
from pytest_moegpu.outcome import Ledger
from pytest_moegpu.own_suites import SuiteModule, suite_files, suite_folder
from pytest_moegpu.questions import add_needs, questions
from pytest_moegpu.report.junit import properties, suite_properties
from pytest_moegpu.report.terminal import failure_text
from pytest_moegpu.rerun import rerun_line
from pytest_moegpu.session import Session
from pytest_moegpu.session.crosscheck import CROSSCHECK, is_asked_for
from pytest_moegpu.session.question import Question
from pytest_moegpu.specs import Spec, named_scenarios, read
from pytest_moegpu.terminal import TerminalProgress, real_stdout

if TYPE_CHECKING:
    from pytest_moegpu.session.serving import AnyServer

__all__ = ["Run", "list_profiles"]

_SUITE_ORDER = (
    *("preflight", "offload", "output", "golden", "axes", "context", "memory", "stability", "throughput", "baseline"),
    CROSSCHECK,
)

_SPEED_SUITES = ("test_throughput", "test_baseline")


def list_profiles(config: pytest.Config) -> list[str]:
    """Return what --moegpu=list prints: each profile and what it needs."""
    from pytest_moegpu.session.doctor import profile_lines

    return profile_lines(catalog_folders(config))


class Run:
    """Hooks and services of a run that measures."""

    def __init__(self, config: pytest.Config, session: Session, own_suites: bool) -> None:
        self.config = config
        self.session = session
        self.own_suites = own_suites
        self.ledger = Ledger(gate=session.options.gate)
        self.interrupted = False
        self.green = False
        self._hidden = False
        self._page = ""
        self._speeds: dict[str, tuple[pytest.FixtureRequest, Verdict]] = {}

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
            asked = is_asked_for(config.option.keyword)
            config.args[:] = [file for file in suite_files() if asked or not file.endswith(f"{CROSSCHECK}.py")]
        return cls(config, session, own)

    # Collection

    def select(self, items: list[pytest.Item], specs: Mapping[pytest.Item, Spec]) -> None:
        """Drop tests above the level or of scenarios not asked for, group the plugin's own tests by scenario."""
        target, level = self.session.target, self.session.options.level
        ours = {s.name for s in target.scenarios}
        out = {item for item, spec in specs.items() if spec.level > level}
        if self.own_suites and target.rehearsal:
            # The speed of a larger card says nothing about the one that is rehearsed.
            out |= {item for item in items if item.path.stem in _SPEED_SUITES}
        for item in items:
            named, given = specs[item].scenario if item in specs else None, _parameter(item)
            # A mark on one parameter names the scenario after pytest has combined it with all of them.
            wrong = given is not None and given != named and (named is not None or given not in ours)
            if wrong or (target.restricted and named is not None and named not in ours):
                out.add(item)
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
            name = self.scenario_of(item)
            if spec is None or name is None:
                continue
            try:
                add_needs(self.session, name, spec)
                if metric := _compared(item):
                    self.session.needs(name).compared[metric] = None
            except UserError as error:
                raise MarkerError(f"{item.nodeid}: {error}") from error

    def parametrize(self, metafunc: pytest.Metafunc) -> None:
        """Give the test the scenario its markers name, or each of the run and of its parameters in turn."""
        wanted, of_parameters = named_scenarios(metafunc.definition)
        every = dict.fromkeys((*(s.name for s in self.session.target.scenarios), *of_parameters))
        metafunc.parametrize("moegpu_scenario", list(every) if wanted is None else [wanted], indirect=True)

    def scenario_of(self, item: pytest.Item) -> str | None:
        """Return the scenario of a test: of its parameter, else of its marker, else the only one of the run."""
        spec = read(item)
        named = _parameter(item) or (spec.scenario if spec is not None else None)
        scenarios = self.session.target.scenarios
        return named or (scenarios[0].name if len(scenarios) == 1 else None)

    @pytest.hookimpl
    def pytest_pycollect_makemodule(self, module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
        """Collect the plugin's own tests whatever the ini file says about names of tests."""
        if module_path.parent != suite_folder():
            return None
        # A file given by name would have an empty node id, and its tests would read "::test_output".
        made: pytest.Module = SuiteModule.from_parent(parent, path=module_path, nodeid=module_path.name)
        return made

    # Judging

    def live(self, scenario: str) -> AnyServer:
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
        _check_metric(baseline)
        asked = self._questions(node, checks, asked_otherwise=baseline is not None)
        found: list[Verdict] = []

        def rerun(keyword: str) -> str:
            return rerun_line(node, scenario, self.session.options, keyword, own_suite=self.own_suites)

        if baseline is not None:
            found += self.session.compare(baseline, scenario, rerun(baseline))
        for question in asked:
            found += self.session.judge(question, scenario, rerun(question.keyword or question.check))
        verdicts = tuple(found)
        node.user_properties.extend(properties(verdicts))
        for verdict in verdicts:
            if verdict.check == "throughput" and verdict.metric in ("decode", "prefill") and verdict.values:
                self._speeds.setdefault(node.nodeid, (request, verdict))
        self.ledger.settle(node.nodeid, verdicts, self.session.failure(scenario))
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
        counts = {outcome: list(self.ledger.outcomes.values()).count(outcome) for outcome in Outcome}
        named = tuple((f"moegpu.tests.{outcome}", str(count)) for outcome, count in counts.items() if count)
        return (*suite_properties(self.session.facts()), *named)

    # pytest's hooks

    def pytest_report_header(self) -> list[str]:
        """Say what is measured on what, before anything starts."""
        facts = self.session.facts()
        return ["moegpu: " + "; ".join(f"{name} {value}" for name, value in facts if value != "none")]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Begin anew with a test that is run again."""
        self.ledger.begin(item.nodeid)
        self._speeds.pop(item.nodeid, None)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """Fail a test that should have judged and did not; show a speed in pytest-benchmark once all is settled."""
        try:
            yield
        finally:
            if item.nodeid in self._speeds:
                request, verdict = self._speeds.pop(item.nodeid)
                replay(request, verdict, self.session.facts())
        if item.nodeid in self.ledger.outcomes:
            return
        spec = read(item)
        if (spec is not None and spec.checks) or "moegpu_verify" in getattr(item, "fixturenames", ()):
            pytest.fail(
                "nothing was judged: call moegpu_verify() in the test, with its parentheses; markers and the fixture "
                "alone judge nothing",
                pytrace=False,
            )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count tests that used the GPU and passed: a run without one is not green."""
        self.ledger.note(report)

    def pytest_keyboard_interrupt(self) -> None:
        """Remember that the run was interrupted, so that its bundle says so."""
        self.interrupted = True

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """End what still runs, close the bundle, and turn a run that measured nothing red."""
        self.session.close("interrupted" if self.interrupted else "finished")
        if exitstatus == pytest.ExitCode.OK and not self.config.option.collectonly:
            session.exitstatus = self.ledger.exit_status()
            self.green = session.exitstatus == pytest.ExitCode.OK
            self._hidden = session.exitstatus == pytest.ExitCode.TESTS_FAILED
            if self.session.unusable or self.session.faults:
                # Whatever the tests asked: a run with a broken device, or that left something on it, is not good.
                session.exitstatus, self.green = pytest.ExitCode.TESTS_FAILED, False
        self._page = step_summary(self.session)

    def summarise(self, reporter: pytest.TerminalReporter) -> None:
        """Write the section of this plugin at the end of pytest's output."""
        if self.config.option.collectonly:
            return
        reporter.section("moegpu")
        for line in section(self.session, self.ledger, green=self.green, hidden=self._hidden):
            reporter.write_line(line)
        if self._page:
            reporter.write_line(self._page)


def _rank(item: pytest.Item) -> int:
    name = item.path.stem.removeprefix("test_")
    return _SUITE_ORDER.index(name) if name in _SUITE_ORDER else len(_SUITE_ORDER)


def _compared(item: pytest.Item) -> str | None:
    """Return the metric that a test of the plugin's own suite will compare; what a user's test asks is not known."""
    callspec = getattr(item, "callspec", None)
    if callspec is None or item.path.parent != suite_folder() or item.path.stem != "test_baseline":
        return None
    metric: str | None = callspec.params.get("metric")
    return metric


def _parameter(item: pytest.Item) -> str | None:
    callspec = getattr(item, "callspec", None)
    return callspec.params.get("moegpu_scenario") if callspec is not None else None


def _check_metric(baseline: str | None) -> None:
    known = [name for name, kind in METRICS.items() if kind.compared]
    if baseline is not None and baseline not in known:
        hint = nearest(str(baseline), known)
        raise UserError(f"moegpu_verify(baseline={baseline!r}): unknown metric{hint}; known: {', '.join(known)}")


def _refuse_xdist(config: pytest.Config) -> None:
    workers, dist = config.getoption("numprocesses", None), config.getoption("dist", "no")
    places = config.getoption("tx", None)
    if workers or hasattr(config, "workerinput"):
        given = f"-n {workers or 'N'}"
    elif dist != "no":
        given = f"--dist={dist}"
    elif places:
        given = f"--tx={places[0]}"
    else:
        return
    raise UserError(
        f"{given} with --moegpu: one server at a time owns the GPU, so tests cannot run in parallel; "
        f"leave it away or add -n 0"
    )
