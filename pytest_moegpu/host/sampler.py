"""Reads a probe in its own thread and keeps every reading, with the phase it was taken in."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec import structs

from pytest_moegpu.core.evidence import Phase
from pytest_moegpu.core.sample import Sample
from pytest_moegpu.errors import ProbeError
from pytest_moegpu.host.native import native_loop
from pytest_moegpu.host.nativebuild import NativeError
from pytest_moegpu.host.nativeloop import NativeLoop
from pytest_moegpu.host.nativeplan import Planned
from pytest_moegpu.host.probe import Probe
from pytest_moegpu.host.switching import switching
from pytest_moegpu.host.treemem import TreeMemory

__all__ = ["Sampler"]

_HOST_EVERY_SECONDS = 0.25
# Many at once take a third of the time that they take one by one; `samples` and `drain` do not wait for this.
_TAKE_EVERY_SECONDS = 1.0
_QUIET_AFTER_SECONDS = 1.0
_QUIET_STRETCH = 1.3


class Sampler:
    """One sampling of one start. Reads every `probe.interval_seconds`, from `start` to `stop`.

    A probe whose questions can be asked without it is read by a loop in C, where there is a C compiler. It does not
    wait for Python, which takes its readings once in a while. A question that is not answered plainly is asked
    again through the probe, so errors are the same. MOEGPU_NATIVE=0 in the environment keeps the loop in Python, and
    `notes` says why it is.

    In Python, once memory has stood still for a second, and no phase has begun, the interval is 1.3 times as long: for
    NVML 100 readings a second become 77, and what is held for 20 ms is still between two readings that see it.

    Readings are due at start + n intervals: a late one does not move those after it. One that took longer than its
    interval costs the ones it covered; a single one follows at once, so that nothing is unseen for much longer than it
    took, and never a burst. The thread stops at the first error and keeps it in `error`.
    The phase is `preflight` until the first `enter`.

    A thread and not a process: in Python, at Python's own switch interval of 5 ms and beside a thread that never rests,
    it was read 83 to 85 times a second instead of 100, with gaps of 40 to 47 ms, since each call of the device's
    library gives up the GIL. At 0.5 ms, which is set while a sampler runs, it was 97 to 100 times, with gaps of 11 to
    28 ms; beside measured streams 99.7 to 100 times, with gaps of 11 to 21 ms (`bench/sampler_cost.py`, two busy
    cores).

    Host memory is read four times a second in a second thread, because looking up a process tree takes milliseconds;
    it is put on the first device's sample of the next reading to come in, the others have None.

    Args:
        probe: What to read. Its `read` may be called from two threads.
        clock: Seconds on the run's monotonic clock, for the stamps.
        host: Host memory of the server's tree, None: not read.
    """

    def __init__(
        self, probe: Probe, clock: Callable[[], float] = time.monotonic, host: TreeMemory | None = None
    ) -> None:
        self._probe = probe
        self._clock = clock
        self._host = host
        self._host_reading: tuple[int | None, int] | None = None
        self._lock = threading.Lock()
        self._phase: str = Phase.PREFLIGHT
        self._stirred = False
        self._readings: list[tuple[Sample, ...]] = []
        self._count = 0
        self._first = self._last = self._gap = 0.0
        self._error: ProbeError | None = None
        self._native: NativeLoop | None = None
        self._collecting = threading.Lock()
        self._slow_because = ""
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin reading.

        Raises:
            RuntimeError: It was started before; a sampler is used once.
        """
        if self._threads:
            raise RuntimeError("a sampler is started once")
        self._native = self._find_native()
        self._threads.append(threading.Thread(target=self._run, name="moegpu-sampler", daemon=True))
        if self._host is not None or self._native is not None:
            self._threads.append(threading.Thread(target=self._look, name="moegpu-sampler-look", daemon=True))
        if self._native is not None:
            # At the end of the interpreter a thread in Python no longer reads; this one would, out of unloaded code.
            atexit.register(self._native.stop)
        switching.begin()
        for thread in self._threads:
            thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """End reading and wait for the thread, at most one interval; calling it again, or before `start`, does nothing.

        A reading that has not come back after `timeout` seconds is left behind and reported in `error`.
        """
        if not self._threads or self._stopping.is_set():
            return
        self._stopping.set()
        if self._native is not None:
            self._native.stop()
            atexit.unregister(self._native.stop)
        stopped = self._clock()
        switching.end()
        until = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        self._collect()
        with self._lock:
            # A reading that hung to the end is a gap as well.
            if self._count:
                self._gap = max(self._gap, stopped - self._last)
        if self._threads[0].is_alive():
            self._keep(ProbeError(f"the {self._probe.name} probe has not answered for {timeout:g} s"))

    def enter(self, phase: str) -> None:
        """Put `phase` on every reading that begins from now on."""
        self._phase = phase
        self._stirred = True
        if self._native is not None:
            self._native.enter(phase)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Be in phase `name` inside the `with` block, and in the one before it afterwards."""
        before = self._phase
        self.enter(name)
        try:
            yield
        finally:
            self.enter(before)

    def read_once(self, phase: str) -> tuple[Sample, ...]:
        """Read now, in the caller's thread, and keep the reading; works before `start` and after `stop`.

        Raises:
            ProbeError: The device cannot be read; kept in `error` too.
        """
        try:
            reading = self._probe.read(self._clock(), phase)
        except ProbeError as error:
            self._keep(error)
            raise
        if self._host is not None:
            reading = _with_host(reading, (self._host.read(), self._host.free()))
        # Those made before it come before it.
        self._collect()
        with self._lock:
            self._readings.append(reading)
        return reading

    def drain(self) -> tuple[Sample, ...]:
        """Return every sample since the last call and forget them: for who watches for hours."""
        self._collect()
        with self._lock:
            readings, self._readings = self._readings, []
        return tuple(sample for reading in readings for sample in reading)

    @property
    def samples(self) -> tuple[Sample, ...]:
        """Every sample so far, in the order they were read."""
        self._collect()
        with self._lock:
            readings = list(self._readings)
        return tuple(sample for reading in readings for sample in reading)

    @property
    def error(self) -> ProbeError | None:
        """The first error of this sampling, if there was one."""
        with self._lock:
            return self._error

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of this sampling should know about it, most often nothing."""
        missed = self._native.missed if self._native is not None else 0
        lost = f"readings not made, because Python did not take those before: {missed}; see the longest gap"
        return tuple(note for note in (self._slow_because, lost if missed else "") if note)

    def rate(self) -> float | None:
        """Return the thread's readings per second, None for fewer than two. `read_once` does not count."""
        with self._lock:
            seconds = self._last - self._first
            return (self._count - 1) / seconds if self._count > 1 and seconds > 0 else None

    def gap(self) -> float | None:
        """Return the longest time between two readings of the thread in seconds, None for fewer than two.

        What was on the device for a shorter time may have passed between two readings.
        """
        with self._lock:
            return self._gap if self._count > 1 else None

    def _find_native(self) -> NativeLoop | None:
        """Prepare the loop in C; None: this probe has none, or there is a reason, which is kept."""
        if not isinstance(self._probe, Planned) or self._clock is not time.monotonic:
            return None
        try:
            native = native_loop(self._probe, self._probe.interval_seconds)
        except NativeError as reason:
            self._slow_because = f"the sampler runs in Python: {reason}; it takes about 1.3 % of a core"
            return None
        native.enter(self._phase)
        return native

    def _run(self) -> None:
        try:
            if self._native is None:
                self._read_in_python()
            else:
                self._read_natively(self._native)
        except ProbeError as error:
            self._keep(error)
        except Exception as error:  # noqa: BLE001 - a thread that dies unseen would look like an idle device
            self._keep(_unforeseen(f"the {self._probe.name} probe", error))

    def _read_natively(self, native: NativeLoop) -> None:
        while not native.sample():
            self._collect()
            # Asked again the slow way, which tells what it is as everything else is told.
            now = self._clock()
            self._add(now, self._probe.read(now, self._phase))

    def _read_in_python(self) -> None:
        # Three readings in four ask for memory alone; beside that, every step of this loop counts.
        read, clock, stopping = self._probe.read, self._clock, self._stopping.is_set
        interval, monotonic, sleep = self._probe.interval_seconds, time.monotonic, time.sleep
        due, hurried = monotonic(), False
        moved = due
        before: list[int | None] = []
        while not stopping():
            now = clock()
            reading = read(now, self._phase)
            self._add(now, reading)
            used = [sample.used_bytes for sample in reading]
            if used != before or self._stirred:
                moved, before, self._stirred = due, used, False
            step = interval if due - moved < _QUIET_AFTER_SECONDS else interval * _QUIET_STRETCH
            due += step
            left = due - monotonic()
            if left <= 0:
                due += -left // step * step
                hurried = not hurried
                if hurried:
                    continue
                due += step
                left = due - monotonic()
            hurried = False
            sleep(max(0.0, left))

    def _collect(self) -> None:
        """Add what the loop in C has read; what is known of host memory belongs to the last of these readings."""
        if self._native is None:
            return
        with self._collecting:
            readings = self._native.take()
            host = self._host_reading
            if host is not None and readings:
                self._host_reading = None
                readings[-1] = _with_host(readings[-1], host)
            with self._lock:
                for reading in readings:
                    self._keep_reading(reading[0].time, reading)

    def _add(self, now: float, reading: tuple[Sample, ...]) -> None:
        if self._host_reading is not None:
            host, self._host_reading = self._host_reading, None
            reading = _with_host(reading, host)
        with self._lock:
            self._keep_reading(now, reading)

    def _keep_reading(self, now: float, reading: tuple[Sample, ...]) -> None:
        self._readings.append(reading)
        if not self._count:
            self._first = self._last = now
        if now - self._last > self._gap:
            self._gap = now - self._last
        self._last = now
        self._count += 1

    def _look(self) -> None:
        """Read host memory, and take what the loop in C has read."""
        host = self._host
        while True:
            if host is not None:
                try:
                    self._host_reading = (host.read(), host.free())
                except Exception as error:  # noqa: BLE001 - as in `_run`
                    self._keep(_unforeseen("host memory", error))
                    host = None
            self._collect()
            if host is None and self._native is None:
                return
            if self._stopping.wait(_TAKE_EVERY_SECONDS if host is None else _HOST_EVERY_SECONDS):
                return

    def _keep(self, error: ProbeError) -> None:
        with self._lock:
            if self._error is None:
                self._error = error


def _with_host(reading: tuple[Sample, ...], host: tuple[int | None, int]) -> tuple[Sample, ...]:
    used, free = host
    return (structs.replace(reading[0], host_bytes=used, host_free_bytes=free), *reading[1:]) if reading else reading


def _unforeseen(what: str, error: Exception) -> ProbeError:
    kept = ProbeError(f"{what} failed: {type(error).__name__}: {error}")
    kept.__cause__ = error
    return kept
