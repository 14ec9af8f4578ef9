"""What this machine must do before it goes back to work: pytest --moegpu=PROFILE test_my_gpu.py.

The limits are loose ones for the embedded profile. Replace them by your own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_moegpu.core.model import Gpu
    from pytest_moegpu.session.chat import ChatClient
    from pytest_moegpu.session.server import Server


@pytest.mark.moegpu
def test_machine(moegpu_gpu: Gpu, moegpu_verify: Callable[..., object]) -> None:
    """Right device, idle, and the model is where it should be."""
    assert moegpu_gpu.memory_bytes >= 2 * 2**30
    assert moegpu_verify("preflight", "offload")


@pytest.mark.moegpu
@pytest.mark.moegpu_output(prompt="What is the capital of Japan?", expect="Tokyo", max_tokens=8)
@pytest.mark.moegpu_output(prompt="What is the chemical symbol for water?", expect=["H2O", "H₂O"], max_tokens=16)
def test_text(moegpu_verify: Callable[..., object]) -> None:
    """Your own questions, asked once in each server start."""
    assert moegpu_verify()


@pytest.mark.moegpu
@pytest.mark.moegpu_context(tokens=768)
def test_context(moegpu_verify: Callable[..., object]) -> None:
    """A prompt of that length is answered, and a fact in it is recalled."""
    assert moegpu_verify()


@pytest.mark.moegpu
@pytest.mark.moegpu_memory(budget="900 MiB")
def test_memory(moegpu_verify: Callable[..., object]) -> None:
    """The peak above idle stays below the budget, and the memory comes back."""
    assert moegpu_verify()


@pytest.mark.moegpu(level=2)
@pytest.mark.moegpu_throughput(metric="decode", min=0.5)
@pytest.mark.moegpu_throughput(metric="ttft", max=120)
def test_speed(moegpu_verify: Callable[..., object]) -> None:
    """Every start is within the limits: tok/s for decode, seconds for TTFT."""
    assert moegpu_verify()


@pytest.mark.moegpu
def test_by_hand(moegpu_server: Server, moegpu_client: ChatClient) -> None:
    """Ask a live server anything, and assert what you like."""
    answer = moegpu_client("What is the opposite of up?", max_tokens=8)
    assert "down" in answer.text.casefold()
    assert answer.finish_reason in ("stop", "length")
    assert moegpu_server.served.context == moegpu_server.spec.settings.context
