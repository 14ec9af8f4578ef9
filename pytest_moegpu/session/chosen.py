"""Which program and which model a run uses, found and checked before anything is started."""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import replace
from pathlib import Path

from pytest_moegpu.backends.base import Backend
from pytest_moegpu.catalog import Catalog
from pytest_moegpu.core.model import ModelFile, ModelFormat, Profile
from pytest_moegpu.core.modelfacts import ModelFacts
from pytest_moegpu.errors import ProgramError, UserError
from pytest_moegpu.host.cache import cache_dir
from pytest_moegpu.host.fetch import fetch_model
from pytest_moegpu.host.hffolder import facts_of_folder, folder_file, is_folder_model
from pytest_moegpu.host.modelfile import facts_of, model_file, read_gguf
from pytest_moegpu.host.stack import find_program
from pytest_moegpu.options import Options
from pytest_moegpu.session.progress import Progress

__all__ = ["EMBEDDED", "GENERAL_ANSWERS", "choose_model", "choose_program", "program_checksum"]

EMBEDDED = "embedded"
"""Value of `program` that stands for the llama.cpp server inside the xllamacpp wheel."""
_EMBEDDED_ARGV = (sys.executable, "-m", "pytest_moegpu.host.embedded_server")
_CACHE = "{cache}"
"""Stands for the cache folder in `program` and `model_path` of a profile."""
_MODEL_VARIABLE = "MOEGPU_MODEL"
GENERAL_ANSWERS = "qwen3.6-35b-a3b"
"""Model whose questions any capable model answers; without a margin for another one, a few misses accuse nobody."""
_FORMAT_WORDS = {
    ModelFormat.GGUF: "a GGUF file",
    ModelFormat.HF: "a folder with config.json and safetensors, as Hugging Face's libraries save it",
}


def choose_program(options: Options, profile: Profile, backend: Backend) -> tuple[str, ...]:
    """Return the server's command: program and arguments that stand before those of the recipe.

    Raises:
        ProgramError: It is not there or cannot be executed; says how it can be given, and how to install it.
    """
    if options.server == EMBEDDED or (options.server is None and profile.program == EMBEDDED):
        return _EMBEDDED_ARGV
    ways = (
        ("--moegpu-server", options.server),
        (backend.program_variable, os.environ.get(backend.program_variable)),
        (f"program of profile {profile.name}", _in_cache(profile.program)),
    )
    try:
        return find_program(backend.program, ways, os.environ.get("PATH"))
    except ProgramError as error:
        hint = f"; {_hint(profile, backend)}" if backend.install_hint else ""
        raise ProgramError(f"{error}{hint}") from error


def program_checksum(program: tuple[str, ...]) -> str | None:
    """Return the start of the SHA-256 of a server program; None for the embedded server, whose program is Python."""
    return None if program == _EMBEDDED_ARGV else hashlib.sha256(Path(program[0]).read_bytes()).hexdigest()[:12]


def choose_model(
    options: Options, catalog: Catalog, profile: Profile, backend: Backend, progress: Progress
) -> tuple[ModelFacts, ModelFile]:
    """Take the model from the option, the environment, the profile, or the source of the profile's model.

    Raises:
        UserError: It is not there, is not whole, or the backend does not load its format.
    """
    known = {model.name: model for model in catalog.models()}
    # The variable stands in for a file that cannot be fetched; a profile whose model can be keeps its own.
    variable = os.environ.get(_MODEL_VARIABLE) if known[profile.model].source is None else None
    given = options.model or variable or _in_cache(profile.model_path)
    if given and given not in known:
        return _at(Path(given).expanduser(), catalog, profile, backend, known)
    facts = known[given] if given else catalog.model(profile.model)
    if facts.source is None:
        wanted = " or ".join(_FORMAT_WORDS[form] for form in backend.model_formats)
        example = "/path/to/file.gguf" if ModelFormat.GGUF in backend.model_formats else "/path/to/folder"
        raise UserError(
            f"profile {profile.name} serves {facts.title}, which is not fetched for you: give {wanted} with "
            f"--moegpu-model={example}, in {_MODEL_VARIABLE}, or as `model_path` in a profile of your own"
        )
    _must_load(backend, ModelFormat.GGUF, f"the file of {facts.title}")
    return facts, model_file(fetch_model(facts, options.offline, say=progress.line))


def _at(
    path: Path, catalog: Catalog, profile: Profile, backend: Backend, known: dict[str, ModelFacts]
) -> tuple[ModelFacts, ModelFile]:
    """Read the model at a path, with what the catalog knows about it."""
    if not path.exists() and profile.model_path and _CACHE in profile.model_path:
        raise UserError(f"model {path} (of profile {profile.name}) does not exist; {_hint(profile, backend)}")
    if is_folder_model(path):
        _must_load(backend, ModelFormat.HF, str(path))
        own, file = facts_of_folder(path), folder_file(path)
    else:
        _must_load(backend, ModelFormat.GGUF, str(path), there=path.exists())
        own, file = facts_of(read_gguf(path)), model_file(path)
    facts = catalog.match_model(own.architecture, own.layers, own.embedding, own.vocabulary)
    facts = facts or own
    # The catalog knows the shape of some models and no question of their own.
    return replace(facts, known_answers=facts.known_answers or known[GENERAL_ANSWERS].known_answers), file


def _must_load(backend: Backend, form: ModelFormat, what: str, *, there: bool = True) -> None:
    if there and form not in backend.model_formats:
        takes = " or ".join(_FORMAT_WORDS[each] for each in backend.model_formats)
        raise UserError(f"{backend.name} does not load {what}: it is {_FORMAT_WORDS[form]}, and it takes {takes}")


def _in_cache(text: str | None) -> str | None:
    return None if text is None else text.replace(_CACHE, str(cache_dir()))


def _hint(profile: Profile, backend: Backend) -> str:
    """Say how to install the engine: by this project's own script where the profile looks in the cache."""
    own = _CACHE in (profile.program or "")
    return f"run `scripts/engines {backend.name}` in a clone of pytest-moegpu" if own else backend.install_hint
