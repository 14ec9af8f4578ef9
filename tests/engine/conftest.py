"""One real embedded llama.cpp server, with the real model, for all tests of this folder."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_moegpu.backends import get_backend
from pytest_moegpu.catalog import Catalog
from pytest_moegpu.core.model import DeviceKind, LaunchSpec, Scenario
from pytest_moegpu.core.modelfacts import ModelFacts
from pytest_moegpu.host.control import free_port
from pytest_moegpu.host.fetch import fetch_model
from pytest_moegpu.session.server import Server, new_key

HOST = "127.0.0.1"
PROGRAM = (sys.executable, "-m", "pytest_moegpu.host.embedded_server")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is here, so that `-m alone` runs it with the few of other folders."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.alone)


@pytest.fixture(scope="session")
def scenario() -> Scenario:
    catalog = Catalog.load()
    return catalog.scenario("embedded-2k", catalog.profile("embedded"))


@pytest.fixture(scope="session")
def facts() -> ModelFacts:
    return Catalog.load().model("smollm2-135m-instruct")


@pytest.fixture(scope="session")
def model(facts: ModelFacts) -> Path:
    """The model's file, fetched once; without it these tests fail, because nothing else proves the real path."""
    return fetch_model(facts)


@pytest.fixture(scope="session")
def build(facts: ModelFacts, scenario: Scenario) -> Callable[[Path, Path], Server]:
    """Make a server of the embedded profile from a model file and a path for its log; it is not started."""

    def make(model: Path, log: Path) -> Server:
        spec = LaunchSpec(
            program=PROGRAM,
            model_path=str(model),
            model_name=facts.name,
            settings=scenario.settings,
            host=HOST,
            port=free_port(HOST),
            api_key=new_key(),
            device_kind=DeviceKind.CPU,
        )
        return Server(get_backend("llamacpp"), spec, scenario.limits, log)

    return make


@pytest.fixture(scope="session")
def server(
    build: Callable[[Path, Path], Server], model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    made = build(model, tmp_path_factory.mktemp("server") / "server.log")
    try:
        made.start()
        yield made
    finally:
        made.stop()
