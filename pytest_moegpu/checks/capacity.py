"""Does the server hold as much context as was asked for: in one request, and in its KV cache?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from pytest_moegpu.checks.common import grouped, with_log
from pytest_moegpu.core.evidence import Evidence, Phase, StartEvidence
from pytest_moegpu.core.model import Scenario, Settings
from pytest_moegpu.core.units import format_percent
from pytest_moegpu.core.verdict import FailedClass, Outcome, Verdict

__all__ = ["judge_kv_cache", "judge_served_context", "kv_line", "kv_notes", "preempted"]

_WAYS = "raise settings.memory_share, take fewer bits in settings.kv_cache, or lower settings.context"


def judge_kv_cache(evidence: Evidence, scenario: Scenario) -> tuple[Verdict, ...]:
    """Return FAILED (memory) where the KV cache of a start is smaller than the context of one request; else nothing.

    Such a server says that it is ready, and breaks or stalls at the first long request.
    """
    context = scenario.settings.context
    verdict = Verdict(
        outcome=Outcome.FAILED,
        check="memory",
        scenario=scenario.name,
        subject="KV cache",
        phase=Phase.LOAD,
        failed_class=FailedClass.MEMORY,
        lines=(("next", _WAYS),),
    )
    held = ((s, s.kv_tokens) for s in evidence.starts)
    return _too_small(verdict, held, context, "the KV cache holds {} tokens, and one request may have {}")


def judge_served_context(evidence: Evidence, scenario: Scenario) -> tuple[Verdict, ...]:
    """Return FAILED (environment) where a server allows one request less context than was asked for; else nothing."""
    context = scenario.settings.context
    verdict = Verdict(
        outcome=Outcome.FAILED,
        check="context",
        scenario=scenario.name,
        subject="context served",
        phase=Phase.READY,
        failed_class=FailedClass.ENVIRONMENT,
    )
    served = ((s, s.log.context if s.served_context is None else s.served_context) for s in evidence.starts)
    return _too_small(verdict, served, context, "the server allows {} tokens, asked for were {}")


def _too_small(
    verdict: Verdict, sizes: Iterable[tuple[StartEvidence, int | None]], context: int, words: str
) -> tuple[Verdict, ...]:
    """Return the verdict with the starts that have fewer tokens than one request may need; nothing without any."""
    small = [(start, tokens) for start, tokens in sizes if tokens is not None and tokens < context]
    if not small:
        return ()
    said = grouped((start.number, words.format(tokens, context)) for start, tokens in small)
    start, least = small[0]
    full = replace(verdict, reason="; ".join(said), more={"value": f"{least} of {context} tokens"})
    return (with_log(full, start),)


def kv_line(start: StartEvidence, settings: Settings) -> tuple[tuple[str, str], ...]:
    """Return the line that says how many tokens the KV cache holds, and how full it was at the end."""
    if start.kv_tokens is None:
        return ()
    said = f"{start.kv_tokens} tokens for {settings.slots} of {settings.context}"
    use = "" if start.kv_use is None else f", {format_percent(start.kv_use, signed=False)} in use at the end"
    return (("KV cache", said + use),)


def kv_notes(starts: tuple[StartEvidence, ...], settings: Settings) -> tuple[str, ...]:
    """Note a KV cache that holds one request but not all at once, and requests that lost theirs."""
    return grouped((start.number, text) for start in starts for text in _notes(start, settings))


def _notes(start: StartEvidence, settings: Settings) -> Iterator[str]:
    whole = settings.context * settings.slots
    if start.kv_tokens is not None and settings.context <= start.kv_tokens < whole:
        yield (
            f"the KV cache holds {start.kv_tokens} tokens, not the {whole} of {settings.slots} full requests at once: "
            "some then wait or are computed again"
        )
    if said := preempted(start):
        yield said


def preempted(start: StartEvidence) -> str:
    """Say that requests lost their KV cache to others and were computed again; empty when none is known to have."""
    if not start.preemptions:
        return ""
    size = "" if start.kv_tokens is None else f" of {start.kv_tokens} tokens"
    return (
        f"{start.preemptions:g} times a request lost its KV cache and was computed again: the cache{size} is too small"
    )
