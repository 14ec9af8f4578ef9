"""Reads a probe in its own thread and keeps every reading, with the phase it was taken in."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pytest_moegpu.core.evidence import Phase, Sample
from pytest_moegpu.errors import ProbeError
from pytest_moegpu.host.probe import Probe

__all__ = ["Sampler"]


class Sampler:
    """One sampling of one start. Reads every `probe.interval_seconds`, from `start` to `stop`.

    The thread waits a whole interval after each reading, so a slow probe is read less often and never in a burst.
    It stops at the first error and keeps it in `error`. The phase is `preflight` until the first `enter`.

    Args:
        probe: What to read. Its `read` may be called from two threads.
        clock: Seconds on the run's monotonic clock.
    """

    def __init__(self, probe: Probe, clock: Callable[[], float] = time.monotonic) -> None:
        self._probe = probe
        self._clock = clock
        self._lock = threading.Lock()
        self._phase: str = Phase.PREFLIGHT
        self._readings: list[tuple[Sample, ...]] = []
        self._times: list[float] = []
        self._error: ProbeError | None = None
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin reading.

        Raises:
            RuntimeError: It was started before; a sampler is used once.
        """
        if self._thread is not None:
            raise RuntimeError("a sampler is started once")
        self._thread = threading.Thread(target=self._run, name="moegpu-sampler", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """End reading and wait for the thread; calling it again, or before `start`, does nothing.

        A reading that has not come back after `timeout` seconds is left behind and reported in `error`.
        """
        self._stopping.set()
        if self._thread is None:
            return
        self._thread.join(timeout)
        if self._thread.is_alive():
            self._keep(ProbeError(f"the {self._probe.name} probe has not answered for {timeout:g} s"))

    def enter(self, phase: str) -> None:
        """Put `phase` on every reading that begins from now on."""
        self._phase = phase

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
        with self._lock:
            self._readings.append(reading)
        return reading

    @property
    def samples(self) -> tuple[Sample, ...]:
        """Every sample so far, in the order they were read."""
        return tuple(sample for reading in self._kept() for sample in reading)

    @property
    def error(self) -> ProbeError | None:
        """The first error of this sampling, if there was one."""
        with self._lock:
            return self._error

    def rate(self) -> float | None:
        """Return the thread's readings per second, None for fewer than two. `read_once` does not count."""
        with self._lock:
            times = list(self._times)
        if len(times) < 2 or times[-1] <= times[0]:
            return None
        return (len(times) - 1) / (times[-1] - times[0])

    def _run(self) -> None:
        while not self._stopping.is_set():
            began = self._clock()
            try:
                reading = self._probe.read(began, self._phase)
            except ProbeError as error:
                self._keep(error)
                return
            except Exception as error:  # noqa: BLE001 - a thread that dies unseen would look like an idle device
                unforeseen = ProbeError(f"the {self._probe.name} probe failed: {type(error).__name__}: {error}")
                unforeseen.__cause__ = error
                self._keep(unforeseen)
                return
            with self._lock:
                self._readings.append(reading)
                self._times.append(began)
            self._stopping.wait(self._probe.interval_seconds)

    def _keep(self, error: ProbeError) -> None:
        with self._lock:
            if self._error is None:
                self._error = error

    def _kept(self) -> list[tuple[Sample, ...]]:
        with self._lock:
            return list(self._readings)
