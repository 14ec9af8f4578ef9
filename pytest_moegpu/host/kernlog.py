"""The kernel log between two looks: what it says about GPUs, from whichever source may be read here."""

from __future__ import annotations

import platform
from collections.abc import Sequence

from pytest_moegpu.core.health import KernelLog, KernelMessage
from pytest_moegpu.core.xid import read_line
from pytest_moegpu.host.kernsource import DmesgSource, JournalSource, KmsgSource, Source, SourceError

__all__ = ["KernelLogReader"]

_MOST_MESSAGES = 200

_HELP = "add the user to group adm or systemd-journal, or let everybody read it: sysctl kernel.dmesg_restrict=0"
_WSL = "on WSL2 the driver runs in Windows: no Xid reaches this kernel's log"
_CONTAINER_HELP = "in a container it must be given: --device /dev/kmsg and --cap-add SYSLOG"


class KernelLogReader:
    """Reads what the kernel says about GPUs, from the first readable of /dev/kmsg, the journal and `dmesg`.

    A source that opens and yields no message at all, or only what a sandbox made up, is not taken: from it, silence
    would not mean that nothing happened. Where Xids cannot reach the log (WSL2) it is read for what else it may say,
    and `problem` says so. Only the kernel's own messages count, not what programs write into its log.

    Args:
        sources: What to try, in this order; by default the three above.
        release: The kernel's release, as `uname -r` prints it; by default that of this machine.
    """

    def __init__(self, sources: Sequence[Source] | None = None, release: str | None = None) -> None:
        self._sources = tuple(sources) if sources is not None else (KmsgSource(), JournalSource(), DmesgSource())
        # The same test as for the OS class of a result.
        self._silent = _WSL if "microsoft" in (platform.release() if release is None else release).lower() else ""
        self._marked: Source | None = None
        self._problem = "the kernel log was never looked at"

    def mark(self) -> None:
        """Remember where the log is now. Never raises: why it cannot be read is told by `since_mark`."""
        self.close()
        said = []
        for source in self._sources:
            try:
                source.mark()
            except SourceError as error:
                source.close()
                said.append(f"{source.name}: {error}")
                continue
            self._marked, self._problem = source, ""
            return
        self._marked = None
        self._problem = f"the kernel log cannot be read ({'; '.join(said)}); {_HELP}; {_CONTAINER_HELP}"

    def since_mark(self) -> KernelLog:
        """Return the lines about GPUs since the mark, oldest first and at most 200, Xids before others. Never raises.

        The mark is used up: the log is closed.
        """
        marked, self._marked = self._marked, None
        if marked is None:
            return KernelLog(problem=self._problem)
        try:
            lines, problem = marked.since()
        except SourceError as error:
            return KernelLog(source=marked.name, problem=f"the kernel log could not be read again: {error}")
        finally:
            self.close()
            self._problem = "the kernel log was read already"
        messages, dropped = _kept([m for seconds, text in lines if (m := read_line(text, seconds)) is not None])
        problems = (self._silent, problem, f"{dropped} further lines about GPUs were left out" if dropped else "")
        return KernelLog(source=marked.name, problem="; ".join(filter(None, problems)), messages=messages)

    def close(self) -> None:
        """Let go of the log, and of the mark. Safe to call at any time, and twice."""
        if self._marked is not None:
            self._marked, self._problem = None, "the kernel log was closed before it was read"
        for source in self._sources:
            source.close()


def _kept(found: list[KernelMessage]) -> tuple[tuple[KernelMessage, ...], int]:
    """Bound the number of messages without losing an Xid to a flood of other lines; returns how many were dropped."""
    ranked = sorted(range(len(found)), key=lambda place: (found[place].xid is None, place))
    places = sorted(ranked[:_MOST_MESSAGES])
    return tuple(found[place] for place in places), len(found) - len(places)
