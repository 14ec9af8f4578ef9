"""Launch settings are checked before anything is started: against the flags that the program says it has."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_moegpu.backends import BACKENDS, get_backend
from pytest_moegpu.backends.base import Backend
from pytest_moegpu.core.launchcheck import LaunchReport, Problem
from pytest_moegpu.core.launchflags import Fault
from pytest_moegpu.core.launchforms import FORMS
from pytest_moegpu.core.launchline import CommandLine, read_line
from pytest_moegpu.core.launchwords import quote
from pytest_moegpu.core.model import LaunchSpec, ModelFormat
from pytest_moegpu.errors import ProgramError, UserError
from pytest_moegpu.session.launchexamine import Finding, examine
from pytest_moegpu.session.launchhelp import (
    InstalledFlags,
    KnownFlags,
    form_of,
    installed_flags,
    installed_program,
    recorded_flags,
)

__all__ = ["check_line", "launch_problems"]

_GGUF = ".gguf"


def launch_problems(backend: Backend, spec: LaunchSpec, installed: InstalledFlags) -> tuple[str, ...]:
    """Return what the installed program would refuse of `extra_flags`, with the right spelling; none is empty.

    Args:
        backend: The recipe that writes the command line.
        spec: What the server is started with.
        installed: The flags of the programs of this run; where they cannot be read, nothing is judged.

    Raises:
        UserError: The recipe cannot express the settings.
    """
    known = installed.of(backend, spec.program)
    own = len(spec.settings.extra_flags)
    if known is None or not own:
        return ()
    words = list(backend.argv(spec)[len(spec.program) :])
    form = form_of(backend.name, spec.program)
    words = words[1:] if words[0] in form.verbs else words
    findings = examine(backend, known, form, words, spec.compute_capability)
    # They stand last in every recipe; what stands before them is not the user's own.
    findings = tuple(each for each in findings if each.first >= len(words) - own)
    return tuple(
        f"{each.written}: {each.reason}" + (f" ({each.left_out})" if each.left_out not in each.reason else "")
        for each in findings
    )


def check_line(words: Sequence[str], gpu: str | None = None) -> LaunchReport:
    """Say what is wrong with a pasted command line, and write the one that does what was meant.

    Args:
        words: Its words, or the whole of it as one text.
        gpu: Compute capability of the GPU it is for, such as 8.6; None where that does not matter.

    Raises:
        UserError: No server program of a known backend in it, or a quote that is not closed.
    """
    line = read_line(words)
    if line.backend not in BACKENDS:
        raise UserError(f"{line.backend} is known by name only; known: {', '.join(sorted(BACKENDS))}")
    backend = get_backend(line.backend)
    known, notes = _known(backend, line)
    texts = [word.text for word in line.arguments]
    findings = examine(backend, known, form_of(line.backend, [word.text for word in line.program]), texts, gpu)
    problems = [_problem(line, each) for each in findings]
    if line.instead:
        problems.insert(0, _wrong_program(line))
    return LaunchReport(
        backend=line.backend,
        against=known.against,
        flags=len(known.flags),
        problems=tuple(problems),
        notes=(*notes, *_model_notes(backend, texts)),
        line=_rewritten(line, findings),
        comments=_comments(line, findings),
    )


def _known(backend: Backend, line: CommandLine) -> tuple[KnownFlags, tuple[str, ...]]:
    """Return the flags to hold a line against, and what to know about them."""
    words = tuple(word.text for word in line.program)
    verb = words[-1] if words and words[-1] == "run" else ""
    # The recipe writes the verb itself, and vLLM's old module has the flags of its command.
    program = words[:-1] if words and words[-1] in FORMS[line.backend].verbs else words
    note = "the program in the image may be of another version" if line.contained else "it is not installed here"
    own = () if line.instead or _is_old_module(words) else program
    ways = () if line.contained else dict.fromkeys((installed_program(backend, own), installed_program(backend, ())))
    for found in ways:
        try:
            if found is not None:
                return installed_flags(backend, found, verb), ()
        except ProgramError as error:
            note = f"its own help cannot be had: {error}"
    known = recorded_flags(backend.name, verb)
    if known is None:
        raise UserError(f"{backend.name}: {note}, and no flags of it are recorded; {backend.install_hint}")
    return known, (note,)


def _is_old_module(words: Sequence[str]) -> bool:
    return "vllm.entrypoints.openai.api_server" in words


def _model_notes(backend: Backend, texts: Sequence[str]) -> tuple[str, ...]:
    """Say what a help text does not: which models the engine loads."""
    files = [text for text in texts if text.endswith(_GGUF)]
    if not files:
        return ()
    notes = []
    if ModelFormat.GGUF not in backend.model_formats:
        notes.append(f"{files[0]}: pytest --moegpu starts {backend.name} with a Hugging Face folder only")
    if ModelFormat.HF in backend.model_formats and not files[0].startswith(("/", "~", "$")):
        notes.append(f"{files[0]}: a relative path may be taken for a repository of the hub; write it in full")
    return tuple(notes)


def _problem(line: CommandLine, finding: Finding) -> Problem:
    word = line.arguments[finding.first]
    return Problem(
        fault=finding.fault,
        word=line.number(word),
        at=word.start,
        written=finding.written,
        reason=finding.reason,
        instead=finding.words,
        left_out=finding.left_out,
    )


def _wrong_program(line: CommandLine) -> Problem:
    written = " ".join(word.raw for word in line.program)
    instead = " ".join(line.instead)
    return Problem(
        fault=Fault.PROGRAM,
        word=line.number(line.program[0]),
        at=line.program[0].start,
        written=written,
        reason=f"there is no such program; write {instead}",
        instead=line.instead,
    )


def _rewritten(line: CommandLine, findings: Sequence[Finding]) -> str:
    """Write the line that does what was meant; what was right stays as it was written."""
    replaced = {each.first: each for each in findings}
    behind: list[str] = []
    models: list[str] = []
    at = 0
    while at < len(line.arguments):
        finding = replaced.get(at)
        if finding is None:
            behind.append(line.arguments[at].raw)
            at += 1
            continue
        # A model without a flag stands first.
        (models if finding.words and not finding.words[0].startswith("-") else behind).extend(
            quote(word) for word in finding.words
        )
        at += finding.count
    variables = () if line.contained else _variables(findings)
    program = line.instead or tuple(word.raw for word in line.program)
    words = [*(f"{name}={quote(value)}" for name, value in variables), *program, *models, *behind]
    before, after = line.text[: line.at], line.text[line.end :]
    joint = "" if not before or before[-1].isspace() else " "
    return f"{before}{joint}{' '.join(words)}{after}".strip()


def _comments(line: CommandLine, findings: Sequence[Finding]) -> tuple[str, ...]:
    told = [f"{each.written}: {each.comment}" for each in findings if each.comment]
    told += [f"{each.written}: left out; {each.left_out}" for each in findings if each.left_out]
    if line.contained:
        told += [f"give the container {name}={value}" for name, value in _variables(findings)]
    # One line each, or what is pasted would not be a comment.
    return tuple(" ".join(each.split()) for each in told)


def _variables(findings: Sequence[Finding]) -> tuple[tuple[str, str], ...]:
    return tuple(dict.fromkeys(item for each in findings for item in each.environment))
