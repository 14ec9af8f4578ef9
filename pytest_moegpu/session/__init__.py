"""Composition: profile, scenario, backend and host put together, and the runs made from them."""

from pytest_moegpu.session.session import Session

__all__ = ["Session"]
