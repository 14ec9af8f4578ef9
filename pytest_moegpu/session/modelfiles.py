"""Model files made out of others, for `moegpu model`."""

from __future__ import annotations

from pathlib import Path

from pytest_moegpu.core.units import format_bytes
from pytest_moegpu.core.upcycle import How, Order
from pytest_moegpu.host import upcycle as writing

__all__ = ["upcycle"]


def upcycle(
    dense: Path, out: Path, how: str, experts: int, used: int, *, seed: int = 0, force: bool = False
) -> list[str]:
    """Write the mixture of experts of a dense model and return what to tell: sizes and checksums of both files.

    Raises:
        UserError: The model or the order does not do, or `out` cannot be written; nothing is left of it then.
    """
    order = Order(how=How(how), experts=experts, used=used, seed=seed)
    made = writing.upcycle(dense, out, order, force=force)
    drawn = f", router of seed {seed}" if order.how is How.COPIES else ""
    return [
        f"dense  {dense}  {made.dense_bytes} B ({format_bytes(made.dense_bytes)})  sha256 {made.dense_sha256}",
        f"moe    {out}  {made.size_bytes} B ({format_bytes(made.size_bytes)})  sha256 {made.sha256}",
        f"       {experts} {order.how}, {used} used for each token{drawn}",
    ]
