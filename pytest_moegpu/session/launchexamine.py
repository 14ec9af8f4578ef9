"""What is wrong with the arguments of a server, and what was meant by them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_moegpu.backends import BACKENDS, get_backend
from pytest_moegpu.backends.base import Backend
from pytest_moegpu.core.flags import MEANINGS
from pytest_moegpu.core.launchflags import Argument, Fault, alike, read_arguments
from pytest_moegpu.core.launchforms import Form
from pytest_moegpu.core.launchmeaning import DOCUMENTED, has_suffix, read_meaning
from pytest_moegpu.core.launchwords import quote
from pytest_moegpu.errors import UserError, nearest
from pytest_moegpu.session.launchhelp import KnownFlags, foreign_flags
from pytest_moegpu.session.launchtranslate import Meant, Translator

__all__ = ["Finding", "examine"]

_MOST_CHOICES = 12
_NOTHING = "nothing here is known to mean the same"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One argument that the program refuses, and what does what was meant.

    Args:
        fault: What is wrong.
        written: The flag with its values as written.
        reason: Why that is wrong, and what to write.
        first: Index of its first word among the arguments.
        count: How many words it takes.
        words: What to write in its place.
        environment: Variables to set in its place.
        comment: What is not quite the same about that.
        left_out: Why there is nothing to write.
    """

    fault: Fault
    written: str
    reason: str
    first: int
    count: int
    words: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    comment: str = ""
    left_out: str = ""


def examine(
    backend: Backend, known: KnownFlags, form: Form, texts: Sequence[str], gpu: str | None
) -> tuple[Finding, ...]:
    """Return what is wrong with the arguments of a backend's program, in their order.

    Args:
        backend: The recipe of the program.
        known: Its flags.
        form: What its parser lets pass.
        texts: The arguments.
        gpu: Compute capability of the GPU, None where that is not known.
    """
    return _Examination(backend, known, form, texts, gpu).findings()


class _Examination:
    def __init__(self, backend: Backend, known: KnownFlags, form: Form, texts: Sequence[str], gpu: str | None) -> None:
        self._backend, self._known, self._form, self._gpu = backend, known, form, gpu
        self._others = foreign_flags(backend.name)
        others = {name: foreign.flag for name, foreign in self._others.items()}
        self._arguments = read_arguments(texts, known.flags, form, others)
        self._names = {name for flag in known.flags for name in flag.names}
        self._meanings = _by_spelling(backend)
        self._translator = Translator(backend, known.flags, form, known.label)
        self._translator.on(
            compute_capability=gpu,
            cpu=self._value_of("device") == "cpu",
            context=self._size("context"),
            slots=self._size("slots"),
        )
        faults = [(each, each.fault or self._faulty_meaning(each)) for each in self._arguments]
        self._faults = [(each, fault) for each, fault in faults if fault is not None]
        # What stands in the line already, or is written in place of something else.
        self._given = {
            each.flag.names[0]: (each.name, *each.values)
            for each, fault in faults
            if each.flag is not None and fault is None
        }

    def findings(self) -> tuple[Finding, ...]:
        return tuple(self._finding(each, fault) for each, fault in self._faults)

    def _value_of(self, meaning: str) -> str:
        return next((a.value for a in self._arguments if a.name and self._meaning(a) == meaning), "")

    def _size(self, meaning: str) -> int | None:
        try:
            said = read_meaning(meaning, self._value_of(meaning))
        except UserError:
            return None
        return said if isinstance(said, int) and said > 0 else None

    def _meaning(self, argument: Argument) -> str:
        """Return what a flag means: to this program, else in the documents that invented it, else to another one."""
        for name in (argument.full, argument.name):
            if name in self._meanings:
                return self._meanings[name]
        if argument.flag is not None:
            return ""
        if argument.name in DOCUMENTED:
            return DOCUMENTED[argument.name]
        for other in BACKENDS:
            meaning = _by_spelling(get_backend(other)).get(argument.name)
            if meaning is not None:
                return meaning
        return ""

    def _faulty_meaning(self, argument: Argument) -> Fault | None:
        """Find what the help text lets pass and the engine, or the GPU with it, does not."""
        meaning = self._meaning(argument) if argument.flag is not None else ""
        if has_suffix(meaning, argument.value):
            return None if self._form.suffixes else Fault.MEANING
        if argument.flag is None or not meaning.startswith("kv_cache") or (argument.flag.choices and not self._gpu):
            return None
        try:
            word = read_meaning("kv_cache", argument.value)
        except UserError:
            # A type of the engine's own, which nobody else can judge.
            return None
        return Fault.MEANING if word is not None and self._translator.refusal(word) else None

    def _finding(self, argument: Argument, fault: Fault) -> Finding:
        meant = self._meant(argument, fault)
        told = self._reason(argument, fault)
        advice = _advice(self._backend.not_flags.get(argument.name, ""))
        if meant.words:
            told += f"; write {' '.join(quote(word) for each in meant.words for word in each)}"
        elif meant.environment:
            told += "; set " + " ".join(f"{name}={quote(value)}" for name, value in meant.environment)
        elif advice:
            told += f"; {advice}"
        new, there = self._new(meant.words)
        return Finding(
            fault=fault,
            written=" ".join((argument.name, *(quote(value) for value in argument.values))),
            reason=told,
            first=argument.first,
            count=argument.count,
            words=new,
            environment=meant.environment,
            comment=_and(meant.comment if new or meant.environment else "", self._lost(argument)),
            left_out=there or (advice and meant.left_out and advice) or meant.left_out,
        )

    def _new(self, words: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], str]:
        """Leave out what the line has already, as two flags of one engine may be one of another.

        Returns:
            The words that are new, and what stands in the way of one that is not.
        """
        new: list[str] = []
        there = ""
        for each in words:
            name = next((flag.names[0] for flag in self._known.flags if each[0] in flag.names), each[0])
            if name not in self._given:
                self._given[name] = each
                new += each
            elif self._given[name][1:] != each[1:]:
                there = f"the line has {' '.join(self._given[name])} already"
        return tuple(new), there

    def _meant(self, argument: Argument, fault: Fault) -> Meant:
        if fault is Fault.NEEDLESS:
            return Meant(words=((argument.full or argument.name,),))
        meaning = self._meaning(argument)
        if fault is Fault.MISSING:
            return Meant(left_out="it says no value")
        if fault is Fault.AMBIGUOUS:
            return Meant(left_out="it can stand for several flags")
        if fault is Fault.MEANING and has_suffix(meaning, argument.value):
            plain = str(read_meaning(meaning, argument.value))
            return Meant(words=((argument.name, plain),), comment=f"read as {plain}")
        meant = self._translator.meant(meaning, argument.value) if meaning else Meant(left_out=_NOTHING)
        if fault is Fault.CHOICE and meant.left_out and argument.flag is not None:
            values = tuple(
                value if value in argument.flag.choices else alike(value, argument.flag.choices)
                for value in argument.values
            )
            if all(values):
                return Meant(words=((argument.name, *values),), comment=f"read as {' '.join(values)}")
        if meaning or fault is Fault.CHOICE:
            return meant
        similar = alike(argument.name, self._names) if argument.name not in self._others else ""
        if similar:
            return Meant(words=((similar, *argument.values),), comment=f"read as {similar}")
        return meant

    def _reason(self, argument: Argument, fault: Fault) -> str:
        label, flag = self._known.label, argument.flag
        if fault is Fault.UNKNOWN:
            meaning, foreign = self._meaning(argument), self._others.get(argument.name)
            owner = f", it is one of {' and '.join(foreign.owners)}" if foreign else ""
            return f"{label} has no such flag{owner}{f' ({MEANINGS[meaning]})' if meaning else ''}"
        if fault is Fault.AMBIGUOUS:
            fits = sorted(name for name in self._names if name.startswith(argument.name))
            return f"{label} has several flags that begin so: {', '.join(fits)}"
        if flag is None:
            return fault.value
        if fault is Fault.CHOICE:
            wrong = next(value for value in argument.values if value not in flag.choices)
            few = f"; it has {', '.join(flag.choices)}" if len(flag.choices) <= _MOST_CHOICES else ""
            return f"{label} has no value {wrong!r} for it{nearest(wrong, flag.choices)}{few}"
        if fault is Fault.MISSING:
            return f"a value is missing{': ' + ', '.join(flag.choices) if flag.choices else ''}"
        if fault is Fault.MEANING and has_suffix(self._meaning(argument), argument.value):
            return f"{label} takes a plain number"
        if fault is Fault.MEANING:
            return self._translator.refusal(str(read_meaning("kv_cache", argument.value)))
        return f"{label} takes no value with it"

    def _lost(self, argument: Argument) -> str:
        """Say what else stands in a JSON that has a flag for one of its keys only."""
        if argument.flag is not None or DOCUMENTED.get(argument.name) != "thinking":
            return ""
        try:
            body = json.loads(argument.value)
        except json.JSONDecodeError:
            return ""
        inner = body.get("chat_template_kwargs", {}) if isinstance(body, Mapping) else {}
        other = [key for key in body if key != "chat_template_kwargs"] if isinstance(body, Mapping) else []
        other += [key for key in inner if key != "enable_thinking"]
        return f"{', '.join(other)} belong into each request" if other else ""


def _by_spelling(backend: Backend) -> Mapping[str, str]:
    return {name: meaning for meaning, names in backend.meanings.items() for name in names if name.startswith("-")}


def _advice(text: str) -> str:
    """Say what a recipe gives in place of a flag: another one, or a reason why there is none."""
    text = text.removeprefix("nothing: ").removeprefix("no such flag: ")
    return f"instead {text}" if re.match(r"-|[A-Z_]+[= ]", text) else text


def _and(*parts: str) -> str:
    return "; ".join(part for part in parts if part)
