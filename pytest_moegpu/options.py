"""pytest's options and ini keys of this plugin, read once into a frozen record. Nothing else reads pytest's config."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_moegpu.errors import UserError

if TYPE_CHECKING:
    import pytest

__all__ = ["LIST", "Options", "add_options", "catalog_folders", "tells_only", "wanted_profile"]

LIST = "list"
_FOLDER = ".moegpu/runs"
_STARTS = 3
_MOST_STARTS = 7
_ATTRIBUTE_STARTS = 5
# Options with which pytest prints something and runs no test.
_TELLING = ("help", "version", "markers", "showfixtures", "show_fixtures_per_test", "cacheshow")
_HELP_RUN = "folder for run bundles (default .moegpu/runs below the rootdir; ini moegpu_runs)"
_HELP_BASE = "folder of baselines (default baselines below the rootdir; ini moegpu_baselines)"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What one run was asked to do. Empty tuples and None mean: as the profile says."""

    profile: str
    scenarios: tuple[str, ...] = ()
    attach: str | None = None
    backend: str | None = None
    server: str | None = None
    model: str | None = None
    devices: tuple[str, ...] = ()
    emulate_bytes: int | None = None
    starts: int = _STARTS
    max_starts: int = _MOST_STARTS
    level: int = 3
    gate: bool = False
    attribute: bool = False
    attribute_starts: int = _ATTRIBUTE_STARTS
    varying: str | None = None
    golden: Path | None = None
    offline: bool = False
    catalog: tuple[Path, ...] = ()
    baselines: Path = Path("baselines")
    runs: Path = Path(_FOLDER)
    baselines_given: bool = False
    runs_given: bool = False
    command: tuple[str, ...] = ()

    @classmethod
    def from_config(cls, config: pytest.Config) -> Options:
        """Read the options of a run that has a profile.

        Raises:
            UserError: Two profiles, a number out of range or an unknown word; the message names what is allowed.
        """
        profile = wanted_profile(config)
        assert profile is not None
        attach = config.getoption("moegpu_attach")
        if attach is not None:
            _refuse_beside_attach(config)
        starts, most = config.getoption("moegpu_starts"), config.getoption("moegpu_max_starts")
        if starts is None:
            starts = _STARTS if attach is None else 1
        if starts < 1:
            raise UserError(f"--moegpu-starts={starts}: at least 1 server start is needed to measure anything")
        if most is not None and most < starts:
            raise UserError(f"--moegpu-max-starts={most} is less than --moegpu-starts={starts}")
        emulated = _size("--moegpu-emulate-vram", config.getoption("moegpu_emulate_vram"))
        if emulated is not None and config.getoption("moegpu_gate"):
            raise UserError(
                "--moegpu-gate with --moegpu-emulate-vram: a rehearsal is not a result of the real card, so it "
                "is no gate; leave one of them away"
            )
        varying = config.getoption("moegpu_varying")
        if varying is not None:
            from pytest_moegpu.core.identity import parse_varying

            parse_varying(varying)
        root, here = config.rootpath, config.invocation_params.dir
        golden = config.getoption("moegpu_golden")
        baselines, runs = config.getoption("moegpu_baselines_folder"), config.getoption("moegpu_runs_folder")
        return cls(
            profile=profile,
            scenarios=_words(config.getoption("moegpu_scenario")),
            attach=attach,
            backend=config.getoption("moegpu_backend"),
            server=config.getoption("moegpu_server"),
            model=config.getoption("moegpu_model"),
            devices=_words(config.getoption("moegpu_device")),
            emulate_bytes=emulated,
            starts=starts,
            max_starts=1 if attach is not None else max(starts, _MOST_STARTS) if most is None else most,
            level=config.getoption("moegpu_level"),
            gate=config.getoption("moegpu_gate"),
            attribute=config.getoption("moegpu_attribute"),
            attribute_starts=_attribute_starts(config),
            varying=varying,
            golden=here / golden if golden else None,
            offline=config.getoption("moegpu_offline"),
            catalog=catalog_folders(config),
            baselines=here / baselines if baselines else root / config.getini("moegpu_baselines"),
            runs=here / runs if runs else root / config.getini("moegpu_runs"),
            baselines_given=bool(baselines),
            runs_given=bool(runs),
            command=("pytest", *config.invocation_params.args) if _plain(config) else ("pytest",),
        )


def _refuse_beside_attach(config: pytest.Config) -> None:
    """Make sure that nothing is asked of an attached server that only a started one can give.

    Raises:
        UserError: Something is; says why it cannot be.
    """
    starts, most = config.getoption("moegpu_starts"), config.getoption("moegpu_max_starts")
    asked = {
        "--moegpu-server": (config.getoption("moegpu_server"), "no program is started"),
        "--moegpu-starts": (starts if starts != 1 else None, "it was started once, by somebody else"),
        "--moegpu-max-starts": (most if most != 1 else None, "it was started once, by somebody else"),
        "--moegpu-attribute": (config.getoption("moegpu_attribute"), "no other server is started"),
        "--moegpu-gate": (config.getoption("moegpu_gate"), "an attached server has no baseline"),
        "--moegpu-golden": (config.getoption("moegpu_golden"), "which model file it has is not known"),
        "--moegpu-emulate-vram": (config.getoption("moegpu_emulate_vram"), "its memory is taken already"),
    }
    for option, (value, why) in asked.items():
        if value:
            raise UserError(f"{option} with --moegpu-attach: {why}; leave one of them away")


def _attribute_starts(config: pytest.Config) -> int:
    """Return how many starts may be spent on finding the cause of wrong text.

    Raises:
        UserError: Less than one, or a number without the option that it belongs to.
    """
    given: int | None = config.getoption("moegpu_attribute_starts")
    if given is None:
        return _ATTRIBUTE_STARTS
    if given < 1:
        raise UserError(f"--moegpu-attribute-starts={given}: at least 1 start is needed to try anything")
    if not config.getoption("moegpu_attribute"):
        raise UserError(f"--moegpu-attribute-starts={given} without --moegpu-attribute: nothing is tried; add that")
    return given


def wanted_profile(config: pytest.Config) -> str | None:
    """Return the profile asked for by --moegpu or MOEGPU_PROFILE, `list` included; None when none is.

    Raises:
        UserError: More than one.
    """
    given = [word for value in config.getoption("moegpu") or [] for word in value.split(",")]
    if not given and (variable := os.environ.get("MOEGPU_PROFILE")):
        given = [variable]
    if len(given) > 1:
        raise UserError(
            f"--moegpu takes one profile, got {' and '.join(given)}: one run measures one machine; "
            "run pytest once for each"
        )
    if given and not given[0]:
        raise UserError("--moegpu needs the name of a profile; --moegpu=list shows them")
    return given[0] if given else None


def tells_only(config: pytest.Config) -> bool:
    """Tell whether pytest was asked for information only, such as --help, so that nothing may be opened."""
    return any(config.getoption(name, None) for name in _TELLING)


def catalog_folders(config: pytest.Config) -> tuple[Path, ...]:
    """Return the folders with the user's own profiles: of the ini file from the rootdir, of the options from here."""
    here = config.invocation_params.dir
    options = config.getoption("moegpu_catalog_folder") or []
    return (
        *(config.rootpath / folder for folder in config.getini("moegpu_catalog")),
        *(here / folder for folder in options),
    )


def _words(values: list[str] | None) -> tuple[str, ...]:
    return tuple(word for value in values or [] for word in value.split(",") if word)


def _size(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    from pytest_moegpu.core.units import parse_bytes

    try:
        size = parse_bytes(text)
    except UserError as error:
        raise UserError(f"{option}={text}: {error}") from error
    if not size:
        raise UserError(f"{option}={text}: a card without memory holds nothing; give that of a real one, as 24GiB")
    return size


def _plain(config: pytest.Config) -> bool:
    return all(isinstance(arg, str) for arg in config.invocation_params.args)


def add_options(parser: pytest.Parser) -> None:
    """Declare the options and ini keys."""
    group = parser.getgroup("moegpu", "GPU gate for mixture-of-experts inference (pytest-moegpu)")
    add = group.addoption
    add("--moegpu", action="append", metavar="PROFILE", help="measure this machine as PROFILE; 'list' names them all")
    add("--moegpu-scenario", action="append", metavar="NAME", help="only these scenarios (repeat or a,b)")
    add(
        "--moegpu-attach",
        metavar="URL",
        help="measure the server that runs at http://host:port instead of starting one; its key goes by MOEGPU_API_KEY",
    )
    add("--moegpu-backend", metavar="NAME", help="backend instead of the profile's (with --moegpu-attach: openai)")
    add("--moegpu-server", metavar="PROGRAM", help="server program (else the backend's variable, or PATH)")
    add(
        "--moegpu-model",
        metavar="FILE|NAME",
        help="model file, or the name of a model (also by MOEGPU_MODEL); with --moegpu-attach the name it is served as",
    )
    add("--moegpu-device", action="append", metavar="GPU", help="GPU by index or UUID (repeat or a,b)")
    add(
        "--moegpu-emulate-vram",
        metavar="SIZE",
        help="rehearse a card of this memory (as 24GiB) on a larger GPU: the rest is held; never a baseline",
    )
    add("--moegpu-starts", type=int, metavar="N", help=f"server starts per scenario (default {_STARTS})")
    add(
        "--moegpu-max-starts",
        type=int,
        metavar="N",
        help="go on up to N starts while a comparison with the baseline is undecided (default 7)",
    )
    add("--moegpu-level", type=int, choices=(1, 2, 3), default=3, help="1 quick, 2 medium, 3 long (default: 3, all)")
    add("--moegpu-gate", action="store_true", help="a missing baseline fails instead of being skipped")
    add(
        "--moegpu-attribute",
        action="store_true",
        help="where text is wrong, start servers that differ in one thing each, and tell which of them is right",
    )
    add(
        "--moegpu-attribute-starts",
        type=int,
        metavar="N",
        help=f"at most N such starts for each scenario and check (default {_ATTRIBUTE_STARTS})",
    )
    add(
        "--moegpu-varying",
        metavar="WORDS",
        help="what may differ from the baseline: driver,cuda,engine,libraries,kernel (default: all of them)",
    )
    add(
        "--moegpu-golden",
        metavar="FILE",
        help="baseline whose golden judges the numbers: another backend's, or of the model in another precision",
    )
    add("--moegpu-offline", action="store_true", help="never use the network; the model must be at hand")
    add(
        "--moegpu-catalog",
        dest="moegpu_catalog_folder",
        action="append",
        metavar="FOLDER",
        help="folder with profiles/, models/, scenarios/ of your own (ini moegpu_catalog)",
    )
    add("--moegpu-baselines", dest="moegpu_baselines_folder", metavar="FOLDER", help=_HELP_BASE)
    add("--moegpu-runs", dest="moegpu_runs_folder", metavar="FOLDER", help=_HELP_RUN)
    parser.addini("moegpu_catalog", "folders with your own profiles, models and scenarios", type="args", default=[])
    parser.addini("moegpu_baselines", "folder of baselines", default="baselines")
    parser.addini("moegpu_runs", "folder for run bundles", default=_FOLDER)
