"""What `moegpu check-text` is asked: its arguments."""

from __future__ import annotations

import argparse

__all__ = ["add_check_text"]


def add_check_text(verb: argparse.ArgumentParser) -> None:
    """Describe the arguments of the verb."""
    verb.formatter_class = argparse.RawDescriptionHelpFormatter
    verb.description = (
        "Looks for signs of broken text in what a model wrote: loops, runs, salad, noise, control tokens.\n"
        "Exit code 0: all good, 1: one is bad, 2: one is suspect, could not be read, or there was none, 3: wrong usage."
    )
    verb.epilog = (
        "A line of JSONL has `text`, and may have `id`, `prompt` (a text or a list of messages), `finish_reason` and\n"
        "`tokens` (objects with `logprob`).\n\nexample:\n  moegpu check-text --json answers.jsonl"
    )
    verb.add_argument("file", nargs="*", metavar="FILE", help="text, or JSONL if it ends in .jsonl; - or none: stdin")
    verb.add_argument("--json", action="store_true", help="write JSON lines: id, verdict, findings")
    verb.add_argument("--jsonl", action="store_true", help="read every FILE as JSONL")
