"""What a launch takes of a device's memory, part by part. Bytes inside, GiB outside."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_moegpu.core.kvcache import kv_meaning
from pytest_moegpu.core.shape import KvGroup
from pytest_moegpu.core.units import GIB, MIB
from pytest_moegpu.errors import UserError

__all__ = ["ELEMENT_BYTES", "Budget", "Part", "Reserve", "default_reserve", "element_bytes", "kv_bytes_per_token"]

ELEMENT_BYTES = {
    "f32": 4.0,
    "f16": 2.0,
    "bf16": 2.0,
    "fp8_e4m3": 1.0,
    "fp8_e5m2": 1.0,
    "int8": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "int4": 18 / 32,
    "iq4_nl": 18 / 32,
    "fp4": 0.5 + 1 / 16,
}
"""Bytes of one cached element by meaning. int8, int4 and q…: GGML blocks of 32 with their scales (ggml-common.h);
fp4: two in a byte and a scale for each 16."""

_SMALL_CARD = 40 * GIB
_SMALL_RESERVE = round(0.45 * GIB)
# Measured on an H200: 766.8 MiB at the peak, of which the log names 157.6.
_LARGE_RESERVE = 609 * MIB
# 93 to 101 MiB in 10 launches there, beside those without.
_LARGE_CUBLAS = 98 * MIB


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of the memory: its name, its bytes on the device, and how that was found."""

    name: str
    size_bytes: int
    how: str = ""


@dataclass(frozen=True, kw_only=True)
class Reserve:
    """What context, libraries and driver take beside what the engine counts; `source` says how that is known.

    `band_bytes` is how far a whole prediction may be off with it. `cublas_bytes` is what cuBLAS takes more, once it is
    used; 0 where the reserve was taken from a launch that uses it.
    """

    size_bytes: int
    source: str
    band_bytes: int
    cublas_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Budget:
    """All parts of one launch on one device.

    `host_bytes` are weights and cache that stay in host memory, `band_bytes` how far the sum may be off, `notes` what a
    reader should know, `missing` what is not known and not in the sum.
    """

    parts: tuple[Part, ...]
    host_bytes: int
    band_bytes: int
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """Bytes on the device."""
        return sum(part.size_bytes for part in self.parts)

    def of(self, name: str) -> int:
        """Bytes of one part; 0 where there is none of that name."""
        return sum(part.size_bytes for part in self.parts if part.name == name)


def default_reserve(device_bytes: int) -> Reserve:
    """Return what is assumed of a device before anything was measured on it.

    0.45 GiB on cards of up to 40 GiB: a 16 GiB RTX 5060 Ti without display loses about 560 MiB, of which the driver
    keeps some anyway (mauriziofonte.it). On larger ones what an H200 showed.
    """
    large = device_bytes > _SMALL_CARD
    return Reserve(
        size_bytes=_LARGE_RESERVE if large else _SMALL_RESERVE,
        source="measured on an H200" if large else "assumed, nothing was measured here",
        band_bytes=GIB,
        cublas_bytes=_LARGE_CUBLAS if large else 0,
    )


def kv_bytes_per_token(groups: tuple[KvGroup, ...], kv_cache: str) -> float:
    """Return the bytes that one more token of a long context takes; layers with a sliding window take none.

    Raises:
        UserError: Unknown cache type.
    """
    size = element_bytes(kv_cache)
    return sum(g.layers * (g.k_width + g.v_width) * size for g in groups if g.window is None)


def element_bytes(kv_cache: str) -> float:
    """Return the bytes of one cached element.

    Raises:
        UserError: Unknown cache type; says the nearest.
    """
    meaning = kv_meaning(kv_cache)
    if meaning not in ELEMENT_BYTES:
        raise UserError(f"the size of an element of {kv_cache} is not known: {', '.join(ELEMENT_BYTES)}")
    return ELEMENT_BYTES[meaning]
