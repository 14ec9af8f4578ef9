from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_moegpu.core.units import (
    GIB,
    MIB,
    format_bytes,
    format_percent,
    format_seconds,
    format_value,
    parse_bytes,
    parse_share,
)
from pytest_moegpu.errors import UserError


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("23.5 GiB", 25_232_932_864),
        ("22 GB", 22_000_000_000),
        ("512MiB", 512 * MIB),
        (" 1 KiB ", 1024),
        ("1 kB", 1000),
        ("0 B", 0),
        ("2 TiB", 2 * 1024 * GIB),
        ("3 TB", 3 * 10**12),
        ("9007199254740993 B", 9_007_199_254_740_993),
    ],
)
def test_parse_bytes(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "24", "GiB", "-1 GiB", "1e3 MiB", "5 %", "1 gib", "1 Gib", "1,5 GiB", "nan B"])
def test_parse_bytes_refuses_what_it_would_have_to_guess(text: str) -> None:
    with pytest.raises(UserError, match="is not a size: write a number and a unit, one of B, KiB, MiB"):
        parse_bytes(text)


def test_a_size_beyond_any_float_is_still_a_number() -> None:
    assert parse_bytes("1" + "0" * 400 + " B") == 10**400


@given(st.integers(0, 2**50))
def test_bytes_round_trip_to_what_is_printed(count: int) -> None:
    half_digit = 0.005 * GIB if count >= GIB else 0.5 * MIB
    assert abs(parse_bytes(format_bytes(count)) - count) <= half_digit + 1


@given(st.integers(0, 2**70))
def test_plain_bytes_round_trip_exactly(count: int) -> None:
    assert parse_bytes(f"{count} B") == count


@pytest.mark.parametrize(
    ("count", "text"), [(GIB, "1.00 GiB"), (GIB - MIB, "1023 MiB"), (0, "0 MiB"), (-2 * GIB, "-2.00 GiB")]
)
def test_format_bytes(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(("text", "share"), [("5 %", 0.05), ("0.05", 0.05), ("100%", 1.0), ("0", 0.0), ("1", 1.0)])
def test_parse_share(text: str, share: float) -> None:
    assert parse_share(text) == pytest.approx(share)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("5", "more than 100 %"),
        ("101 %", "more than 100 %"),
        ("-1 %", "not a share"),
        ("5 GiB", "not a share"),
        ("", "not a share"),
    ],
)
def test_parse_share_refuses(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_share(text)


@given(st.integers(0, 1000))
def test_shares_round_trip(permille: int) -> None:
    assert parse_share(format_percent(permille / 1000, signed=False)) == pytest.approx(permille / 1000)


@pytest.mark.parametrize(
    ("share", "signed", "text"),
    [
        (-0.167, True, "-16.7 %"),
        (0.05, True, "+5.0 %"),
        (0.05, False, "5.0 %"),
        (-0.05, False, "-5.0 %"),
        (-0.0001, True, "+0.0 %"),
        (-0.0001, False, "0.0 %"),
    ],
)
def test_format_percent(share: float, signed: bool, text: str) -> None:
    assert format_percent(share, signed=signed) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.0123, "12.3 ms"), (1.0, "1.00 s"), (-0.5, "-500.0 ms")])
def test_format_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (96.14, "tok/s", "96.1 tok/s"),
        (3205.7, "tok/s", "3206 tok/s"),
        (0.0123, "s", "12.3 ms"),
        (22.5 * GIB, "B", "22.50 GiB"),
    ],
)
def test_format_value(value: float, unit: str, text: str) -> None:
    assert format_value(value, unit) == text
