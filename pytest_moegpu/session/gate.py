"""`moegpu gate` as the command line calls it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TextIO

from pytest_moegpu.core.gateargs import GateOrder
from pytest_moegpu.core.gatepage import GatePage
from pytest_moegpu.errors import RecordError, UserError
from pytest_moegpu.host.files import write_atomic
from pytest_moegpu.report.gate import as_markdown, as_text
from pytest_moegpu.session.gating import page_of
from pytest_moegpu.session.stepping import make_step, tell_state

__all__ = ["run"]

_USAGE = 3


def run(order: GateOrder, out: TextIO, err: TextIO) -> int:
    """Print the page and return the exit code: 0 pass, 1 regressed or failed, 2 no answer, 3 wrong usage.

    Raises:
        RecordError: A run or baseline cannot be read, which is no answer.
        OSError: The Markdown file or the state cannot be written.
    """
    today = datetime.now(UTC).date()
    page: GatePage | None
    try:
        if order.step in ("show", "forget"):
            print(tell_state(order.step), file=out)
            return 0
        if order.step is not None:
            page, following = make_step(order, order.step, today)
        else:
            page, following = page_of(order, today), ""
    except RecordError:
        raise
    except UserError as error:
        print(f"moegpu gate: {error}", file=err)
        return _USAGE
    if page is not None:
        print(as_text(page), file=out)
        if order.markdown is not None:
            write_atomic(order.markdown, as_markdown(page).encode())
    if following:
        print(following, file=out)
    return page.decision.exit_code if page is not None else 0
