"""The real llama.cpp server out of the xllamacpp wheel with the real model, through the code that a run uses."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from pytest_moegpu.backends.base import ChatRequest
from pytest_moegpu.core.answers import contains
from pytest_moegpu.core.evidence import Phase, RequestKind, RequestRecord
from pytest_moegpu.core.modelfacts import KnownAnswer, ModelFacts
from pytest_moegpu.core.prompts import recall, throughput_prompt
from pytest_moegpu.core.timing import decode_rate, prefill_rate, total_time, ttft
from pytest_moegpu.errors import StartError
from pytest_moegpu.host.client import StreamClient
from pytest_moegpu.host.control import Control, listener
from pytest_moegpu.session.server import Server

HOST = "127.0.0.1"
CONTEXT = 2048
# Keys and values, two bytes each (f16).
KV_BYTES = 30 * 3 * 64 * 2 * 2 * CONTEXT

Builder = Callable[[Path, Path], Server]


def ask(server: Server, request: ChatRequest, kind: RequestKind = RequestKind.ANSWER) -> RequestRecord:
    return server.chat(request, kind, "test")


def strongest(facts: ModelFacts) -> KnownAnswer:
    return max(facts.known_answers, key=lambda answer: answer.margin or 0)


def test_ready_means_a_token_was_generated(server: Server) -> None:
    assert server.alive
    assert server.load_seconds is not None
    assert 0 < server.load_seconds < 120
    assert server.pid in server.tree
    assert server.notes == []
    assert server.metrics()["tokens_predicted_total"] >= 1


def test_the_right_model_is_served_with_the_whole_context(server: Server, facts: ModelFacts, model: Path) -> None:
    assert (server.served.name, server.served.path) == (facts.name, str(model))
    assert (server.served.context, server.served.slots) == (CONTEXT, 1)


def test_our_process_listens_on_loopback_only(server: Server) -> None:
    owner = listener(server.spec.host, server.spec.port)
    assert owner is not None
    assert owner.pid == server.pid
    addresses = {c.laddr.ip for c in psutil.Process(owner.pid).net_connections("tcp") if c.status == psutil.CONN_LISTEN}
    assert addresses == {HOST}


def test_the_key_can_be_read_neither_from_the_command_line_nor_from_the_log(server: Server) -> None:
    assert server.pid is not None
    assert server.spec.api_key not in " ".join(psutil.Process(server.pid).cmdline())
    assert server.spec.api_key not in server.log_path.read_text("utf-8", "replace")


def test_log_facts(server: Server, facts: ModelFacts) -> None:
    log = server.log_facts()
    assert sum(log.kv_bytes.values()) == KV_BYTES
    assert facts.kv_layers * facts.kv_heads * facts.head_dim * 2 * 2 * CONTEXT == KV_BYTES
    assert facts.size_bytes is not None
    assert sum(log.model_bytes.values()) == pytest.approx(facts.size_bytes, rel=0.05)
    assert sum(log.compute_bytes.values()) > 0
    assert (log.context, log.slots) == (CONTEXT, 1)
    assert (log.oom_lines, log.fatal_lines) == ((), ())


def test_a_known_answer(server: Server, facts: ModelFacts) -> None:
    known = strongest(facts)
    assert known.margin is not None
    assert known.margin > 2
    record = ask(server, ChatRequest(prompt=known.prompt, max_tokens=known.max_tokens))
    assert record.error is None
    assert contains(record.text, known.expect)
    assert record.status == 200


def test_a_fact_in_the_prompt_is_recalled_with_the_answer_begun(server: Server) -> None:
    fact = recall(400, 12.0, 0.9, 5)
    record = ask(server, ChatRequest(prompt=fact.prompt, prefill=fact.prefill, max_tokens=8))
    assert record.error is None
    assert fact.answer in record.text
    assert fact.prefill not in record.text


def test_a_stream_is_counted_and_timed(server: Server) -> None:
    before = server.metrics()
    prompt = throughput_prompt(200, 12.0, 11)
    record = ask(server, ChatRequest(prompt=prompt, max_tokens=24, ignore_eos=True), RequestKind.THROUGHPUT)
    after = server.metrics()
    assert record.error is None
    assert (record.output_tokens, record.token_source, record.wanted_output_tokens) == (24, "usage", 24)
    assert record.finish_reason == "length"
    assert record.prompt_tokens is not None
    assert 150 < record.prompt_tokens < 300
    first, whole = ttft(record), total_time(record)
    assert first is not None
    assert whole is not None
    assert 0 < first < whole
    for rate in (decode_rate(record), prefill_rate(record)):
        assert rate is not None
        assert math.isfinite(rate)
        assert rate > 0
    assert record.client_lag is not None
    # The engine and the client's clock must tell the same story, within what the network and a busy machine add.
    assert record.engine_timings["predicted_n"] == 24
    assert record.engine_timings["prompt_ms"] / 1000 <= first
    assert after["tokens_predicted_total"] == before["tokens_predicted_total"] + 24
    assert after["prompt_tokens_total"] > before["prompt_tokens_total"]


def test_a_repeated_prompt_comes_from_the_cache_unless_forbidden(server: Server) -> None:
    prompt = throughput_prompt(150, 12.0, 12)
    first = ask(server, ChatRequest(prompt=prompt, max_tokens=1))
    again = ask(server, ChatRequest(prompt=prompt, max_tokens=1))
    fresh = ask(server, ChatRequest(prompt=prompt, max_tokens=1, cache_prompt=False))
    assert first.error is again.error is fresh.error is None
    assert first.prompt_tokens == again.prompt_tokens == fresh.prompt_tokens
    assert again.prompt_tokens is not None
    assert again.cached_tokens is not None
    assert again.prompt_tokens - 8 <= again.cached_tokens < again.prompt_tokens
    assert fresh.cached_tokens == 0


def test_temperature_zero_gives_the_same_text_again(server: Server) -> None:
    request = ChatRequest(prompt="Name three colours.", max_tokens=12, cache_prompt=False)
    assert ask(server, request).text == ask(server, request).text != ""


def test_a_prompt_longer_than_the_context_is_told(server: Server) -> None:
    record = ask(server, ChatRequest(prompt="word " * 3000, max_tokens=8))
    assert record.status == 400
    assert record.error is not None
    assert "exceeds the available context size (2048 tokens)" in record.error
    assert (record.output_tokens, record.first_token, record.text) == (None, None, "")
    assert server.alive
    assert ask(server, ChatRequest(prompt="Hi", max_tokens=1)).error is None


def test_another_key_is_refused(server: Server) -> None:
    stranger = StreamClient(HOST, server.spec.port, "another-key")
    body = server.backend.request(server.spec, ChatRequest(prompt="Hi", max_tokens=1))
    assert stranger.stream(server.backend.chat_path, body, 10.0).status == 401
    control = Control(HOST, server.spec.port, "another-key", timeout=10.0)
    answer = control.get(server.backend.props_path or "/props")
    assert answer is not None
    assert answer[0] == 401


def test_stop_leaves_neither_process_nor_listener(build: Builder, model: Path, tmp_path: Path) -> None:
    made = build(model, tmp_path / "server.log")
    spawned: list[int] = []
    try:
        made.start(spawned.append)
        tree = made.tree
        assert spawned == [made.pid]
    finally:
        report = made.stop()
    assert (report.exit_code, report.killed, report.left) == (0, (), ())
    assert not made.alive
    assert [pid for pid in tree if psutil.pid_exists(pid)] == []
    assert listener(made.spec.host, made.spec.port) is None
    assert made.stop() == report
    gone = ask(made, ChatRequest(prompt="Hi", max_tokens=1))
    assert gone.error == "connection refused"


def test_a_truncated_model_names_exit_code_and_last_lines(build: Builder, model: Path, tmp_path: Path) -> None:
    half = tmp_path / "half.gguf"
    half.write_bytes(model.read_bytes()[: model.stat().st_size // 2])
    made = build(half, tmp_path / "server.log")
    try:
        with pytest.raises(StartError) as caught:
            made.start()
        tree = made.tree
    finally:
        made.stop()
    failure = caught.value.failure
    assert failure.phase in (Phase.LAUNCH, Phase.LOAD)
    assert failure.exit_code == 1
    assert failure.cause.startswith("fatal error (exit code 1): ")
    assert "failed to load model" in failure.cause
    assert any("not within the file bounds" in line for line in failure.log_tail)
    assert failure.log_path == str(made.log_path)
    assert not failure.out_of_memory
    assert [pid for pid in tree if psutil.pid_exists(pid)] == []
