"""How the server programs are called: by which names, modules and images, and what their parsers let pass."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["FORMS", "Form", "Program"]


@dataclass(frozen=True, kw_only=True)
class Program:
    """One way to start a server: the words of it, such as `vllm serve` or `-m sglang.launch_server`.

    `instead` is what to write where documents give a program that does not exist.
    """

    words: tuple[str, ...]
    instead: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Form:
    """What is known about the command line of one backend before its help text is read.

    Args:
        programs: The ways to start it.
        image: Pattern of the container images whose own entry point starts it, None where they need a command.
        entry: What that entry point is, in words.
        abbreviates: Whether the beginning of a long flag stands for it, as Python's argparse has it.
        underscores: Whether `--a_b` stands for `--a-b`.
        verbs: Last words of a program that its recipe writes itself.
        suffixes: Whether a number of tokens may end in k or M.
        dotted: Whether a key of a flag's JSON may be given behind a dot, and `-O3` for `-O 3`.
    """

    programs: tuple[Program, ...]
    image: re.Pattern[str] | None = None
    entry: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ()
    abbreviates: bool = False
    underscores: bool = False
    suffixes: bool = False
    dotted: bool = False


def _programs(*lines: str) -> tuple[Program, ...]:
    return tuple(Program(words=tuple(line.split())) for line in lines)


FORMS: dict[str, Form] = {
    "llamacpp": Form(
        programs=_programs("llama-server", "moegpu-embedded-server", "-m pytest_moegpu.host.embedded_server"),
        image=re.compile(r"/llama\.cpp:server\b"),
        entry=("llama-server",),
        underscores=True,
    ),
    "vllm": Form(
        programs=_programs("vllm serve", "-m vllm.entrypoints.cli.main serve", "-m vllm.entrypoints.openai.api_server"),
        image=re.compile(r"(?:^|/)vllm-openai(?:[:@]|$)|(?:^|/)vllm/vllm-openai"),
        entry=("vllm", "serve"),
        verbs=("serve",),
        abbreviates=True,
        underscores=True,
        suffixes=True,
        dotted=True,
    ),
    "sglang": Form(
        programs=_programs("-m sglang.launch_server", "sglang serve", "sglang-server"),
        abbreviates=True,
        suffixes=True,
    ),
    "fastllm": Form(
        programs=(
            *_programs("ftllm server", "-m ftllm server", "-m ftllm.cli server"),
            *(
                Program(words=(word,), instead=("ftllm", "server"))
                for word in ("fastllm_server", "fastllm-server", "ftllm_server")
            ),
        ),
        verbs=("server",),
        abbreviates=True,
    ),
    "mlx": Form(
        programs=_programs("mlx_lm.server", "mlx_lm server", "-m mlx_lm.server", "-m mlx_lm server"),
        abbreviates=True,
    ),
    "ollama": Form(
        programs=_programs("ollama serve", "ollama start", "ollama run"),
        image=re.compile(r"(?:^|/)ollama/ollama(?:[:@]|$)"),
        entry=("ollama", "serve"),
        verbs=("serve", "start", "run"),
    ),
}
"""Backend → how it is called. Only the words of a program are matched, so a path or `python3.12` may stand before."""
