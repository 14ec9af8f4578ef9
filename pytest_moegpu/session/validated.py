"""Whether a scenario was judged before on this very stack: what its last stored run said, and what moved since."""

from __future__ import annotations

from pathlib import Path

from pytest_moegpu.core.evidence import Evidence
from pytest_moegpu.core.gate import decide
from pytest_moegpu.core.identity import differences, stack_changes
from pytest_moegpu.errors import RecordError
from pytest_moegpu.host.store import RunStore, read_run

__all__ = ["validated"]

_MOST_RUNS = 50


def validated(now: Evidence, runs: Path) -> str:
    """Return what the last stored run of this scenario on this machine and model said, of the last 50 runs.

    A scenario whose launch settings differ from what was judged is not the one that was judged. Runs that cannot be
    read tell nothing.
    """
    store = RunStore(runs)
    for name in reversed(store.ids()[-_MOST_RUNS:]):
        try:
            run = read_run(store.find(name))
        except RecordError:
            continue
        for evidence in run.evidence:
            same = (evidence.profile, evidence.scenario, evidence.backend) == (now.profile, now.scenario, now.backend)
            if not same or run.status == "running":
                continue
            decision = decide([v for v in run.verdicts if v.scenario == now.scenario])
            told = f"{name}: {decision.headline}"
            if differing := differences(evidence.identity, now.identity):
                return f"not as it is now; {told}; since then {'; '.join(map(str, differing))}"
            if moved := stack_changes(evidence.stack, now.stack):
                return f"{told}; since then {'; '.join(map(str, moved))}"
            return f"{told}; nothing has moved since"
    return f"never judged here; pytest --moegpu={now.profile} --moegpu-scenario={now.scenario} does it"
