"""What the plugin costs a pytest run that does not use it, next to pytest-benchmark in the same run.

    python bench/idle_cost.py [--rounds 20] [--json idle_cost.json]

Each round imports each plugin's entry module in a fresh interpreter, after pytest itself, in turn; the median counts.
Target: 0.02 s at most, and neither NVML, HTTP, numpy nor scipy imported.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from tabulate import tabulate

PROGRAM = """
import sys, time
import pytest
began = time.perf_counter()
__import__(sys.argv[1])
seconds = time.perf_counter() - began
heavy = sorted({m.split(".")[0] for m in sys.modules} & {"pynvml", "httpx", "numpy", "scipy", "msgspec", "psutil"})
print(seconds, ",".join(heavy) or "none")
"""
MODULES = ("pytest_moegpu.plugin", "pytest_benchmark.plugin")


def once(module: str) -> tuple[float, str]:
    """Import a module in a fresh interpreter; returns the seconds it took and the heavy packages that came with it."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, module], capture_output=True, text=True, check=True)
    seconds, heavy = done.stdout.split()
    return float(seconds), heavy


def main() -> None:
    """Measure in turn, print a table with the ratio to the peer, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path, default=Path("idle_cost.json"))
    args = parser.parse_args()
    results: dict[str, list[tuple[float, str]]] = {module: [] for module in MODULES}
    for _ in range(args.rounds):
        for module in MODULES:
            results[module].append(once(module))
    medians = {module: statistics.median(s for s, _ in found) for module, found in results.items()}
    peer = medians[MODULES[1]]
    rows = [
        (module, f"{medians[module] * 1000:.1f}", f"{medians[module] / peer:.2f}", results[module][0][1])
        for module in MODULES
    ]
    print(tabulate(rows, headers=("module", "median ms", "ratio to pytest-benchmark", "heavy imports")))
    args.json.write_text(json.dumps({"rounds": args.rounds, "median_seconds": medians}, indent=1))


if __name__ == "__main__":
    main()
