"""Which server a pasted command line starts, and with which arguments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_moegpu.core.launchforms import FORMS, Program
from pytest_moegpu.core.launchwords import Word, quote, split_words
from pytest_moegpu.errors import UserError, nearest

__all__ = ["CommandLine", "read_line"]

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_PYTHON = re.compile(r"python[\d.]*(?:\.exe)?")
_RUNNERS = frozenset(("docker", "podman", "nerdctl", "apptainer", "singularity"))


@dataclass(frozen=True, kw_only=True)
class CommandLine:
    """A command line that starts a server.

    Args:
        backend: Name of the backend.
        text: The whole of what was pasted.
        program: Words that start the server; empty where a container image does.
        arguments: The words behind them.
        at: Where the program begins in `text`; where its arguments do, if it has no word of its own.
        end: Where the last argument ends.
        instead: What to write for a program that does not exist.
        contained: Whether it runs in a container, so that the program is not the one installed here.
    """

    backend: str
    text: str
    program: tuple[Word, ...]
    arguments: tuple[Word, ...]
    at: int
    end: int
    instead: tuple[str, ...] = ()
    contained: bool = False

    def number(self, word: Word) -> int:
        """Return which word of the command this is, from 1, counting all that stands before the program."""
        words = [each for each in split_words(self.text) if each.command == word.command]
        return 1 + next(index for index, each in enumerate(words) if each.start == word.start)


def read_line(words: Sequence[str]) -> CommandLine:
    """Read a command line: the words that a shell has made of it, or one text as it was pasted.

    Raises:
        UserError: No words, no program of a known server in it, or a quote that is not closed.
    """
    if not any(word.strip() for word in words):
        raise UserError("no command line: write it behind --, or all of it as one text in quotes")
    text = words[0] if len(words) == 1 else " ".join(quote(word) for word in words)
    found = split_words(text)
    for command in dict.fromkeys(word.command for word in found):
        line = _read_command(text, [word for word in found if word.command == command])
        if line is not None:
            return line
    known = ", ".join(_spelled(form.programs[0]) for form in FORMS.values())
    first = next((word.text for word in found if not _ASSIGNMENT.match(word.text)), "")
    hint = nearest(_name(first), [program.words[0] for form in FORMS.values() for program in form.programs])
    raise UserError(f"no server program in this command line: {first!r} is none{hint}; known: {known}")


def _read_command(text: str, words: list[Word]) -> CommandLine | None:
    contained = any(_name(word.text) in _RUNNERS for word in words)
    for backend, program, first, behind in _programs(words):
        return CommandLine(
            backend=backend,
            text=text,
            program=tuple(words[first:behind]),
            arguments=tuple(words[behind:]),
            at=words[first].start,
            end=words[-1].end,
            instead=program.instead,
            contained=contained,
        )
    if not contained:
        return None
    for index, word in enumerate(words):
        for backend, form in FORMS.items():
            if form.image is not None and form.image.search(word.text):
                arguments = tuple(words[index + 1 :])
                # `ollama/ollama serve`: the entry point is the program, without its verb.
                verb = bool(arguments) and form.entry[1:] == (arguments[0].text,)
                return CommandLine(
                    backend=backend,
                    text=text,
                    program=arguments[:1] if verb else (),
                    arguments=arguments[verb:],
                    at=arguments[0].start if arguments else word.end,
                    end=words[-1].end,
                    contained=True,
                )
    return None


def _programs(words: list[Word]) -> Iterator[tuple[str, Program, int, int]]:
    """Find programs: backend, program, index of its first word, index behind its last one."""
    for first, word in enumerate(words):
        for backend, form in FORMS.items():
            for program in form.programs:
                begin = first
                said = [_name(word.text), *(each.text for each in words[first + 1 : first + len(program.words)])]
                if program.words[0] == "-m":
                    if not _PYTHON.fullmatch(_name(word.text)):
                        continue
                    begin = next((i for i, each in enumerate(words) if i > first and each.text == "-m"), len(words))
                    said = [each.text for each in words[begin : begin + len(program.words)]]
                if tuple(said) == program.words:
                    yield backend, program, first, begin + len(program.words)


def _spelled(program: Program) -> str:
    return " ".join(("python", *program.words) if program.words[0] == "-m" else program.words)


def _name(word: str) -> str:
    return re.split(r"[/\\]", word)[-1].removesuffix(".exe")
