"""How fast signs of broken text are looked for, on honest and on hostile text, at two sizes.

    python -m bench.text_speed [--json FILE]

Each text is examined three times and the best time counts. The time of `zlib.compress` (level 6) on the same text, in
the same run, tells how fast the machine is. Linear time shows in the last column: the speed at the small size over that
at the large one, which stays near 1 (or below it, where fixed cost weighs on the small text).
"""

from __future__ import annotations

import argparse
import json
import random
import time
import zlib
from pathlib import Path

from tabulate import tabulate

from pytest_moegpu.core.text import examine

CORPUS = Path(__file__).parents[1] / "tests/data/corpora/text-open.jsonl"
SIZES = (250_000, 1_000_000)
_REPEATS = 3


def texts(size: int) -> dict[str, str]:
    """Return texts of about `size` characters: honest ones, then hostile ones."""
    chance = random.Random(3)
    rows = [json.loads(line) for line in CORPUS.read_text(encoding="utf-8").splitlines()]
    prose = [row["text"] for row in rows if row["class"] == "prose"]
    code = [row["text"] for row in rows if row["class"] == "code"]
    chinese = [row["text"] for row in rows if row["language"] == "zh" and row["label"] == "good"]

    def filled(parts: list[str]) -> str:
        out: list[str] = []
        length = 0
        while length < size:
            out.append(chance.choice(parts))
            length += len(out[-1]) + 1
        return "\n".join(out)[:size]

    half = size // 2
    return {
        "prose": filled(prose),
        "code": filled(code),
        "prose, code and Chinese in turn": filled([*prose, *code, *chinese]),
        "Chinese": filled(chinese),
        "one letter": "a" * size,
        "two letters, one change": "ab" * (half // 2) + "c" + "ab" * (half // 2),
        "nesting": "[" * size,
        "open objects": '{"a":' * (size // 5),
        "one line of random letters": "".join(chance.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=size)),
        "random code points": "".join(map(chr, chance.choices(range(32, 0xD7FF), k=size))),
        "half a token": "<|" * half,
        "underscores": "a_" * half,
        "runs below the limit": ("a" * 11 + "b") * (size // 12),
        "line ends": "\n" * size,
        "quotes and digits": '"0' * half,
        "U+FFFD": "\ufffd" * size,
        "scripts in turn": "a之x한й " * (size // 6),
        "spaces": "a" + " " * size + "a",
        "Fibonacci": _fibonacci(size),
    }


def _fibonacci(size: int) -> str:
    a, b = "a", "ab"
    while len(b) < size:
        a, b = b, b + a
    return b[:size]


def seconds(text: str) -> float:
    best = float("inf")
    for _ in range(_REPEATS):
        started = time.process_time()
        examine(text, "Explain gravity.")
        best = min(best, time.process_time() - started)
    return best


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    small, large = (texts(size) for size in SIZES)
    examine("The first text loads the model of words.", "")
    rows = []
    for name in small:
        # MB are millions of bytes of UTF-8; the speed is that of one core, in processor time.
        speeds = [len(t.encode()) / 1e6 / max(seconds(t), 1e-6) for t in (small[name], large[name])]
        raw = large[name].encode()
        started = time.process_time()
        zlib.compress(raw, 6)
        deflate = len(raw) / 1e6 / max(time.process_time() - started, 1e-6)
        rows.append(
            {
                "text": name,
                "MB/s at 0.25 M characters": round(speeds[0], 2),
                "MB/s at 1 M": round(speeds[1], 2),
                "zlib MB/s": round(deflate, 1),
                "of zlib": round(speeds[1] / deflate, 3),
                "small over large": round(speeds[0] / speeds[1], 2),
            }
        )
        print(f"{name}: {speeds[1]:.2f} MB/s", flush=True)
    print(tabulate(rows, headers="keys", tablefmt="github"))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
