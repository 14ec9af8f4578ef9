"""A setting that was written for one engine, in the words of another: its own recipe writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_moegpu.backends.base import Backend
from pytest_moegpu.core.flags import MEANINGS, Flag
from pytest_moegpu.core.launchflags import read_arguments
from pytest_moegpu.core.launchforms import Form
from pytest_moegpu.core.launchmeaning import AS_WRITTEN, FIELDS, SAME_BITS, read_meaning
from pytest_moegpu.core.model import DeviceKind, LaunchSpec, ModelFormat, Settings
from pytest_moegpu.errors import UserError

__all__ = ["Meant", "Translator"]

_SETTING = re.compile(r"^settings\.\w+: (?:\w+: )?")
_NAMED = re.compile(r"\bsettings\.(\w+)")
_PROGRAM = ("program",)
_SIZES = ("context", "slots")


@dataclass(frozen=True, kw_only=True)
class Meant:
    """What does the same in the backend's own words.

    Args:
        words: Flags with their values, each flag a tuple.
        environment: Variables that say it where no flag does.
        comment: What is not quite the same about it.
        left_out: Why there is nothing to write; then all else is empty.
    """

    words: tuple[tuple[str, ...], ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    comment: str = ""
    left_out: str = ""


class Translator:
    """Writes settings in the flags of one backend, as its recipe does for a scenario."""

    def __init__(self, backend: Backend, flags: Sequence[Flag], form: Form, label: str) -> None:
        self._backend, self._flags, self._form, self._label = backend, flags, form, label
        self._table = {name: flag for flag in flags for name in flag.names}
        self._spec = LaunchSpec(
            program=_PROGRAM,
            model_path="model",
            model_name="model",
            settings=Settings(context=4096),
            host="127.0.0.1",
            port=8080,
            api_key="key",
            model_format=backend.model_formats[0] if backend.model_formats else ModelFormat.HF,
        )

    def on(self, *, compute_capability: str | None, cpu: bool, context: int | None, slots: int | None) -> None:
        """Set what the rest of the line says: the device, and the sizes that other flags depend on."""
        settings = replace(
            self._spec.settings,
            context=context or self._spec.settings.context,
            slots=slots or self._spec.settings.slots,
            gpu_layers=0 if cpu else None,
        )
        self._spec = replace(
            self._spec,
            settings=settings,
            compute_capability=compute_capability,
            device_kind=DeviceKind.CPU if cpu else DeviceKind.GPU,
        )

    def refusal(self, word: str) -> str:
        """Return why the backend, or the GPU with it, refuses a KV cache type; empty if it does not."""
        try:
            self._written("kv_cache", word)
        except UserError as error:
            return self._plain(error)
        return ""

    def meant(self, meaning: str, value: str) -> Meant:
        """Return what does the same.

        Args:
            meaning: A key of `MEANINGS`.
            value: The value as it was written for another engine, or wrongly for this one.
        """
        if meaning in AS_WRITTEN:
            return self._as_written(meaning, value)
        if meaning not in FIELDS:
            return Meant(left_out=f"every engine has its own words for this ({MEANINGS[meaning]})")
        try:
            said = read_meaning(meaning, value)
        except UserError as error:
            return Meant(left_out=str(error))
        if said is None and meaning != "gpu_layers":
            return Meant(left_out="it leaves the choice to the engine, as no flag does")
        try:
            return self._written(FIELDS[meaning], said)
        except UserError as error:
            reason = self._plain(error)
            return self._with_same_bits(said, reason) if meaning.startswith("kv_") else Meant(left_out=reason)

    def _written(self, field: str, said: Any) -> Meant:
        """Have the recipe write the setting, and take what belongs to it.

        Raises:
            UserError: The backend cannot do it; says why.
        """
        spec = self._with(field, said)
        names = {name for m in FIELDS if FIELDS[m] == field for name in self._backend.meanings.get(m, ())}
        written = tuple(self._arguments(spec))
        own = tuple(each for each in written if each[0] in names)
        # Other flags follow the size, and they are in the line for its sake.
        words = own if own and field in _SIZES else self._different(written, names)
        if words:
            absent = [each[0] for each in words if each[0] not in self._table]
            return Meant(left_out=f"{self._label} has no {absent[0]}") if absent else Meant(words=words)
        if field == "thinking" and "thinking" in self._backend.meanings:
            # The recipe says it in each request, which a person may not.
            return Meant(words=((self._backend.meanings["thinking"][0], json.dumps({"enable_thinking": said})),))
        # The sizes are in the other line as well; a variable that follows them is seen by another size.
        other = self._with(field, said + 1) if field in _SIZES else self._spec
        old = self._backend.environment(other)
        added = tuple(item for item in self._backend.environment(spec).items() if item[1] != old.get(item[0]))
        if added:
            return Meant(environment=added)
        usual = isinstance(said, bool) and said == getattr(Settings(context=1), field)
        return Meant(left_out="it does so without a flag" if usual else f"{self._label} has no flag for that")

    def _different(self, written: Sequence[tuple[str, ...]], names: set[str]) -> tuple[tuple[str, ...], ...]:
        """Return the flags of these names, and those that are not written without the setting."""
        before = set(self._arguments(self._spec))
        return tuple(each for each in written if each[0] in names or each not in before)

    def _with(self, field: str, said: Any) -> LaunchSpec:
        return replace(self._spec, settings=replace(self._spec.settings, **{field: said}))

    def _arguments(self, spec: LaunchSpec) -> Iterator[tuple[str, ...]]:
        """Let the recipe write the command line, and cut it into flags with their values.

        Raises:
            UserError: The backend cannot do what is asked for.
        """
        words = self._backend.argv(spec)[len(_PROGRAM) :]
        for argument in read_arguments(words, self._flags, self._form):
            if argument.name:
                yield (argument.name, *argument.values)

    def _as_written(self, meaning: str, value: str) -> Meant:
        spellings = self._backend.meanings.get(meaning, ())
        if not spellings:
            return Meant(left_out=f"{self._label} has no flag for it ({MEANINGS[meaning]})")
        name = spellings[0]
        if not name.startswith("-"):
            return Meant(words=((value,),))
        flag = self._table.get(name)
        if flag is None:
            return Meant(left_out=f"{self._label} has no {name}")
        if flag.choices and value not in flag.choices:
            return Meant(left_out=f"{name} takes {', '.join(flag.choices)}")
        return Meant(words=((name,) if not value or flag.takes_value is False else (name, value),))

    def _with_same_bits(self, word: str, reason: str) -> Meant:
        """Offer the KV cache type of as many bits that the backend, and the GPU with it, can do."""
        # Of what was asked for, and of each better one that this GPU cannot do.
        reasons = [reason]
        for other in SAME_BITS.get(word, ()):
            try:
                meant = self._written("kv_cache", other)
            except UserError as error:
                reasons.append(self._plain(error))
                continue
            if meant.words or meant.environment:
                short = "; ".join(each.partition(";")[0] for each in reasons)
                return replace(meant, comment=f"{short}; {other} takes as much memory")
        return Meant(left_out="; ".join(dict.fromkeys(reasons)))

    def _plain(self, error: UserError) -> str:
        """Return a recipe's message with flags for the settings that it names, as far as there are any."""

        def flag(match: re.Match[str]) -> str:
            meaning = next((m for m, field in FIELDS.items() if field.startswith(match[1])), "")
            return next(iter(self._backend.meanings.get(meaning, ())), match[0])

        return _NAMED.sub(flag, _SETTING.sub("", str(error)))
