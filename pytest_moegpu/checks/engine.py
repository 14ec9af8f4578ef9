"""Did the engine live behind its front? A process and a port that stay are not enough."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pytest_moegpu.checks.beyond import died_of_it
from pytest_moegpu.checks.common import quote
from pytest_moegpu.checks.findings import Finding, Weight
from pytest_moegpu.core.evidence import StartEvidence

__all__ = ["engine_findings"]

# What fronts say of an engine that is gone: vLLM 0.32, MLX 0.32 (docs/how-to/server-faults.md).
_ENGINE_GONE = re.compile(r"EngineCore encountered an issue|EngineDeadError|generation thread died", re.IGNORECASE)


def engine_findings(start: StartEvidence) -> Iterator[Finding]:
    """Find an engine that died: with its server, of a too long prompt; or behind a front that lived on."""
    failed = [r for r in start.requests if r.error is not None and not r.too_long]
    count = f"{len(failed)} of {len(start.requests)} requests failed"
    said = f"; {count}, the first with {quote(failed[0].error or '')}" if failed else ""
    gone = [r for r in failed if _ENGINE_GONE.search(r.error or "")]
    if died := died_of_it(start):
        yield _fault(start, f"a prompt longer than the context ended the engine: {died}")
    elif start.health_at_end:
        yield _fault(
            start, f"the server lived on, but not its engine: after the last request {start.health_at_end}{said}"
        )
    elif gone and start.failure is None:
        yield _fault(start, f"the engine died under a request: {quote(gone[0].error or '')}; {count}")


def _fault(start: StartEvidence, text: str) -> Finding:
    return Finding(weight=Weight.FAULT, start=start.number, text=text)
