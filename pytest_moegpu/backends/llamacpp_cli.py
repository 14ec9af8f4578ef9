"""llama.cpp's one-shot program `llama-cli`, with the settings of a llama-server: same model, same kernels, no server.

Read off build 11434: `llama-cli` shows the prompt behind "> " and ends with "Exiting..."; `llama-completion`, which is
what `llama-cli` was before, prints the bare answer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pytest_moegpu.backends.llamacpp import LlamaCpp
from pytest_moegpu.core.model import LaunchSpec
from pytest_moegpu.core.modelfacts import KnownAnswer

__all__ = ["CLI_PROGRAM", "CLI_VARIABLE", "cli_argv", "cli_environment", "read_answer"]

CLI_PROGRAM = "llama-cli"
"""Executable looked for on PATH."""
CLI_VARIABLE = "MOEGPU_LLAMA_CLI"
"""Environment variable that may name it."""

# Flags of llama-server that the one-shot program does not take, and how many values follow.
_SERVER_ONLY = {
    "--alias": 1,
    "--parallel": 1,
    "--host": 1,
    "--port": 1,
    "--cache-ram": 1,
    "--log-verbosity": 1,
    "--metrics": 0,
    "--no-webui": 0,
    "--no-cache-prompt": 0,
}
_SHOWN_PROMPT = "\n> "
_END_OF_TEXT = "[end of text]"
# What stands behind the answer, and what is of the log rather than of the answer.
_BEHIND = re.compile(r"\n+\[ Prompt: [^\n]* \]|\n+Exiting\.\.\.")
_LOG_LINE = re.compile(r"^(?:\d+\.\d+\.\d+\.\d+ [A-Z] |warning: ).*\n?", re.MULTILINE)


def cli_argv(spec: LaunchSpec, program: Sequence[str], question: KnownAnswer) -> tuple[str, ...]:
    """Write the command line: that of the server without what only a server has, and the question.

    Raises:
        UserError: As `LlamaCpp.argv`.
    """
    words = iter(LlamaCpp().argv(spec)[len(spec.program) :])
    kept: list[str] = []
    for word in words:
        if word in _SERVER_ONLY:
            for _ in range(_SERVER_ONLY[word]):
                next(words)
        else:
            kept.append(word)
    return (
        *program,
        *kept,
        *("--prompt", question.prompt, "--predict", str(question.max_tokens), "--temp", "0", "--seed", "1"),
        *("--single-turn", "--jinja", "--no-display-prompt", "--simple-io", "--log-verbosity", "1"),
        *("--reasoning", "on" if spec.settings.thinking else "off"),
    )


def cli_environment(spec: LaunchSpec) -> dict[str, str]:
    """Variables to add: the devices of the run."""
    return LlamaCpp().devices(spec)


def read_answer(output: str, prompt: str) -> str:
    """Find the answer in all that was printed; the empty text when there is none."""
    text = _LOG_LINE.sub("", output.replace("\r", ""))
    shown = text.rfind(_SHOWN_PROMPT)
    if shown >= 0:
        said = text[shown + len(_SHOWN_PROMPT) :]
        # A long prompt is shown in part; the answer begins behind its line.
        text = said.removeprefix(prompt) if said.startswith(prompt) else said.partition("\n")[2]
    if end := _BEHIND.search(text):
        text = text[: end.start()]
    return text.strip().removesuffix(_END_OF_TEXT).strip()
