"""`moegpu check-text`: what is read, what is printed, and the exit code."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from pytest_moegpu.cli import main
from pytest_moegpu.session import checktext
from pytest_moegpu.session.checktext import check_texts

GOOD = "The bridge was built in the spring, when the river was low."
LOOP = "The bridge was built. " * 20


def checked(
    files: list[str], stdin: bytes = b"", *, jsonl: bool = False, as_json: bool = True
) -> tuple[int, list[str], str]:
    out, err = io.StringIO(), io.StringIO()
    code = check_texts(files, io.BytesIO(stdin), out, err, jsonl=jsonl, as_json=as_json)
    return code, out.getvalue().splitlines(), err.getvalue()


def lines(*rows: object) -> bytes:
    return b"".join(row if isinstance(row, bytes) else json.dumps(row).encode() + b"\n" for row in rows)


def test_each_line_gets_a_verdict_with_its_findings() -> None:
    rows = lines({"id": "a", "prompt": "Tell me.", "text": GOOD}, {"id": 7, "text": LOOP, "finish_reason": "length"})
    code, out, err = checked([], rows, jsonl=True)
    first, second = map(json.loads, out)
    assert code == 1
    assert err == ""
    assert first == {"id": "a", "verdict": "good", "findings": []}
    assert (second["id"], second["verdict"]) == ("7", "bad")
    finding = second["findings"][0]
    assert finding["name"] == "periodic-tail"
    assert finding["strength"] == 1.0
    assert finding["position"] == 0
    assert "The bridge was built. " in finding["detail"]


def test_a_file_is_one_text_unless_it_is_called_jsonl(tmp_path: Path) -> None:
    row = json.dumps({"text": GOOD})
    (tmp_path / "a.txt").write_text(GOOD)
    (tmp_path / "b.jsonl").write_text(f"{row}\n\n{row}\n")
    code, out, _ = checked([str(tmp_path / "a.txt"), str(tmp_path / "b.jsonl")])
    assert code == 0
    assert [json.loads(line)["id"] for line in out] == [
        str(tmp_path / "a.txt"),
        f"{tmp_path / 'b.jsonl'} line 1",
        f"{tmp_path / 'b.jsonl'} line 3",
    ]


def test_a_person_gets_a_line_for_each_text_and_a_summary() -> None:
    code, out, _ = checked(["-"], LOOP.encode(), as_json=False)
    assert code == 1
    assert out[0].startswith("bad      stdin  periodic-tail at 0 (1.00): ")
    assert out[1] == "1 text: 0 good, 0 suspect, 1 bad; 0 not read"


def test_a_suspect_text_is_neither_good_nor_bad() -> None:
    code, out, _ = checked([], lines({"text": "Hooray! " + "🎉" * 60}), jsonl=True)
    assert code == 2
    assert json.loads(out[0])["verdict"] == "suspect"


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (b"{'text': 1}\n", "not JSON"),
        (b"[" * 100_000 + b"\n", "not JSON"),
        (b'"text"\n', "not a JSON object"),
        ({"id": "x"}, "lacks a `text`"),
        ({"text": None}, "lacks a `text`"),
        ({"text": "a", "finish_reason": 3}, "`finish_reason`"),
        ({"text": "a", "prompt": 3}, "`prompt`"),
        ({"text": "a", "prompt": ["a"]}, "`prompt`"),
        ({"text": "a", "tokens": "b"}, "`tokens` is no list"),
        ({"text": "a", "tokens": [{"logprob": "b"}]}, "`tokens` has a logprob"),
    ],
)
def test_a_line_that_cannot_be_read_is_named_and_the_rest_goes_on(row: object, says: str) -> None:
    code, out, err = checked([], lines({"text": GOOD}, row, {"text": GOOD}), jsonl=True)
    assert code == 2
    assert [json.loads(line)["id"] for line in out] == ["stdin line 1", "stdin line 3"]
    assert err.startswith("moegpu check-text: stdin line 2: ")
    assert says in err


def test_a_line_above_the_limit_is_refused_by_number_and_never_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checktext, "LARGEST", 1 << 20)
    rows = lines({"text": GOOD}, b'{"text": "' + b"a" * (5 << 20) + b'"}\n', {"text": GOOD})
    code, out, err = checked([], rows, jsonl=True)
    assert code == 2
    assert [json.loads(line)["id"] for line in out] == ["stdin line 1", "stdin line 3"]
    assert err == "moegpu check-text: stdin line 2: a line larger than 1 MiB\n"


def test_a_file_above_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checktext, "LARGEST", 1 << 20)
    code, out, err = checked(["-"], b"a" * ((1 << 20) + 1))
    assert (code, out, err) == (2, [], "moegpu check-text: stdin: larger than 1 MiB\n")


def test_bytes_that_are_not_utf_8_are_said_to_be_so_and_judged() -> None:
    code, out, _ = checked(["-"], "Der Bär frißt süße Früchte".encode("latin-1"))
    row = json.loads(out[0])
    assert code == 1
    assert row["note"] == "not UTF-8 from byte 5 on"
    assert row["findings"][0]["name"] == "byte-noise"


def test_a_byte_order_mark_is_no_text() -> None:
    assert json.loads(checked(["-"], b"\xef\xbb\xbf" + GOOD.encode())[1][0])["verdict"] == "good"


def test_half_a_surrogate_pair_and_nul_bytes_are_found_and_can_be_printed() -> None:
    rows = b'{"id": "\\ud800", "text": "The \\ud800 bridge \\udc00 was \\u0000 built"}\n'
    code, out, _ = checked([], rows, jsonl=True)
    assert code == 1
    assert json.loads(out[0])["findings"][0]["name"] == "byte-noise"
    out[0].encode("utf-8")
    told = checked([], rows, jsonl=True, as_json=False)[1][0]
    assert "\\ud800" in told
    told.encode("utf-8")


def test_a_missing_file_and_a_folder_are_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(GOOD)
    code, out, err = checked([str(tmp_path / "none"), str(tmp_path), str(tmp_path / "a.txt")])
    assert code == 2
    assert len(out) == 1
    assert err.splitlines() == [
        f"moegpu check-text: {tmp_path / 'none'}: No such file or directory",
        f"moegpu check-text: {tmp_path}: Is a directory",
    ]


def test_nothing_read_is_not_good(tmp_path: Path) -> None:
    assert checked([], b"", jsonl=True)[:2] == (2, [])
    code, out, _ = checked(["-"], b"")
    assert code == 1
    assert json.loads(out[0])["findings"][0]["name"] == "empty"


def test_messages_are_a_prompt_too() -> None:
    said = [{"role": "user", "content": [{"type": "text", "text": 'Repeat "yes" 90 times.'}]}]
    assert checked([], lines({"text": "yes " * 90, "prompt": said}), jsonl=True)[0] == 0
    assert checked([], lines({"text": "yes " * 90, "prompt": "Is it?"}), jsonl=True)[0] == 1


@pytest.mark.parametrize("tokens", [[{"logprob": None}], [None], b'[{"logprob": NaN}]', b"[-Infinity, -0.1]"])
def test_a_token_without_a_number_fails(tokens: object) -> None:
    told = tokens if isinstance(tokens, bytes) else json.dumps(tokens).encode()
    rows = b'{"text": ' + json.dumps(GOOD).encode() + b', "tokens": ' + told + b"}\n"
    code, out, _ = checked([], rows, jsonl=True)
    assert code == 1
    assert json.loads(out[0])["findings"][0]["name"] == "no-number"


def test_the_verb_reads_files_and_returns_the_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_bytes(lines({"id": "one", "text": GOOD}, {"id": "two", "text": "!" * 60}))
    assert main(["check-text", "--json", str(file)]) == 1
    verdicts = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(v["id"], v["verdict"]) for v in verdicts] == [("one", "good"), ("two", "bad")]
    with pytest.raises(SystemExit) as left:
        main(["check-text", "--jsno"])
    assert left.value.code == 3
