"""Questions with one right answer, drawn with a seed: eight kinds, in English and Chinese, in four tiers.

Tier 1 goes by examples, so that a model of a tenth of a billion parameters can; tier 4 is for some tens of billions.
What a model of a size should do is no proof that this one does: a probe counts only once it was calibrated, which
`core.probemargins` says of whole runs, and `moegpu calibrate` of one model for the catalog.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

from pytest_moegpu.core.modelfacts import KnownAnswer
from pytest_moegpu.core.probekinds import KINDS

__all__ = ["LANGUAGES", "PROBES_VERSION", "SEED", "TIERS", "probes"]

PROBES_VERSION = 1
"""Goes up with every change of what a seed gives."""
SEED = 20261201
TIERS = (1, 2, 3, 4)
LANGUAGES = ("en", "zh")
_PER_TIER = {1: 4, 2: 2, 3: 2, 4: 2}
"""Probes of one kind and language."""
_SURE = {"copying": 10, "fact": 30, "code": 6}
"""More probes of the first tier, of kinds that small models are sure of."""
_MOST_DRAWS = 300


def probes(seed: int = SEED, tiers: Iterable[int] = TIERS) -> tuple[KnownAnswer, ...]:
    """Return the probes of some tiers, the same for the same seed; none is calibrated.

    Names are kind, tier, language and number, as in `arithmetic-2-en-1`. Those of a tier do not depend on which others
    are asked for.
    """
    made: list[KnownAnswer] = []
    for tier in sorted(set(tiers) & set(TIERS)):
        for kind, make in KINDS.items():
            for language in LANGUAGES:
                draw = random.Random(f"{PROBES_VERSION} {seed} {kind} {tier} {language}")
                found: dict[str, KnownAnswer] = {}
                for _ in range(_MOST_DRAWS):
                    probe = make(draw, tier, language)
                    found.setdefault(_asked(probe), probe)
                    if len(found) == (_SURE.get(kind, 0) if tier == 1 else 0) + _PER_TIER[tier]:
                        break
                made += (replace(p, name=f"{kind}-{tier}-{language}-{n}") for n, p in enumerate(found.values(), 1))
    return tuple(made)


def _asked(probe: KnownAnswer) -> str:
    """Return what is asked: the last question, whatever examples stand before it."""
    lines = probe.prompt.splitlines()
    return lines[-2] if lines[-1] in ("A:", "答：") else probe.prompt
