"""Profiles, models and scenarios as TOML, read by one strict loader."""

from pytest_moegpu.catalog.loader import Catalog, check_files
from pytest_moegpu.catalog.values import parse_duration

__all__ = ["Catalog", "check_files", "parse_duration"]
