"""Clock event reasons: what held a GPU's clocks down, as words.

Bits: https://docs.nvidia.com/deploy/nvml-api/api/group__nvmlClocksEventReasons.html ("throttle reasons" before 535).
"""

from __future__ import annotations

__all__ = ["BY_HAND", "EVENT_REASONS", "HARMFUL", "NEGLIGIBLE_SHARE", "reason_names"]

EVENT_REASONS: dict[int, str] = {
    0x001: "idle",
    0x002: "applications_clocks",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal",
    0x040: "hw_thermal",
    0x080: "hw_power_brake",
    0x100: "display_clocks",
    0x200: "board_limit",
    0x400: "reliability",
}
"""Bit of the NVML mask → short word."""

HARMFUL: frozenset[str] = frozenset({"hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake"})
"""Words that make a speed reading invalid.

Running at the power cap is how a loaded GPU works, and idle is how an unloaded one does; neither is here.
"""

NEGLIGIBLE_SHARE = 0.02
"""Below this share of a phase's readings a harmful reason is a note, not a doubt.

NVML says `hw_slowdown` may also show for a moment while clocks change, without harm; and what lasts for less than 2 %
of a phase cannot cost more than 2 % of its speed, the smallest loss that is ever called one (`core.compare`).
"""

BY_HAND: frozenset[str] = frozenset({"applications_clocks", "display_clocks"})
"""Words for clocks that somebody set: no fault, but a reader of the speed should know."""


def reason_names(mask: int) -> tuple[str, ...]:
    """Return the words of a mask, lowest bit first; a bit without a word is `bit_0x…`, so that it is not lost."""
    bits = (1 << place for place in range(mask.bit_length()) if mask >> place & 1)
    return tuple(EVENT_REASONS.get(bit, f"bit_{bit:#x}") for bit in bits)
