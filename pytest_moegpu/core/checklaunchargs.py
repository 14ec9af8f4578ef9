"""What `moegpu check-launch` is asked: its arguments."""

from __future__ import annotations

import argparse

from pytest_moegpu.core.argtypes import capability

__all__ = ["add_check_launch"]


def add_check_launch(verb: argparse.ArgumentParser) -> None:
    """Describe the arguments of the verb."""
    verb.formatter_class = argparse.RawDescriptionHelpFormatter
    verb.description = (
        "Holds a command line against the flags of the program that it starts, and writes the line that does what was\n"
        "meant. Exit code 0: nothing wrong, 1: something wrong, 3: no known server in it."
    )
    verb.epilog = "example:\n  moegpu check-launch --gpu 8.6 -- llama-server -m model.gguf --max-model-len 6144"
    verb.add_argument("--json", action="store_true", help="write JSON")
    verb.add_argument(
        "--gpu", type=capability, metavar="X.Y", help="compute capability of the GPU it is for, such as 8.6"
    )
    verb.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="-- COMMAND",
        help="the command line: its words behind --, or all of it as one text in quotes",
    )
