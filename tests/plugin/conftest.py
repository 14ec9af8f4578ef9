from __future__ import annotations

import pytest

from tests.fakes.project import Project


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Project:
    return Project.create(pytester, monkeypatch)
