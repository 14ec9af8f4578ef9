"""Where an upgrade stands that goes there and back: before, after, and back on the old stack."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["GATE_SCHEMA", "GateState", "GateStep", "advice", "refusal"]

GATE_SCHEMA = 1
_ORDER = ("before", "after", "back")


@dataclass(frozen=True, kw_only=True)
class GateStep:
    """One step: the run that was named for it, when, and in which boot of the machine that was."""

    run: str
    folder: str
    at: str
    boot_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class GateState:
    """What is remembered between steps. `varying` are the words of what may move, None lets all of it."""

    schema: int
    profile: str
    varying: str | None = None
    steps: dict[str, GateStep] = field(default_factory=dict)

    @property
    def done(self) -> str:
        """The last step that was made."""
        return next((name for name in reversed(_ORDER) if name in self.steps), "")

    @property
    def made(self) -> tuple[tuple[str, GateStep], ...]:
        """The steps that were made, in their order."""
        return tuple((name, self.steps[name]) for name in _ORDER if name in self.steps)

    @property
    def following(self) -> str:
        """The step that comes next; empty after the last."""
        return {"": "before", "before": "after", "after": "back"}.get(self.done, "")


def refusal(state: GateState | None, step: str) -> str:
    """Return why a step cannot be made now; empty when it can. A finished or unknown state begins anew."""
    done = state.done if state is not None else ""
    if step == "before":
        if done in ("", "back"):
            return ""
        return f"an upgrade of {state.profile if state else ''} is under way, after step {done}: {advice(state)}"
    if state is None or state.following != step:
        return f"step {step} is out of order: {advice(state)}"
    return ""


def advice(state: GateState | None) -> str:
    """Say what to do next."""
    if state is None or not state.done:
        return "nothing is under way; measure the stack as it is, then: moegpu gate --step before"
    measure = f"pytest --moegpu={state.profile} --moegpu-starts=7"
    what = state.varying or "what is to be tested"
    forget = "; moegpu gate --step forget ends it here"
    return {
        "before": f"next: install the new {what}, reboot, {measure}, then: moegpu gate --step after{forget}",
        "after": f"next, to be sure: put the old {what} back, reboot, {measure}, then: moegpu gate --step back{forget}",
        "back": "all three steps are made; the next upgrade begins with: moegpu gate --step before",
    }[state.done]
