"""Small texts, broken and whole, written for these tests."""

from __future__ import annotations

import random
import string
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_moegpu.core.text import examine
from pytest_moegpu.core.textfinding import Finding, TextVerdict, verdict

NOISE = random.Random(7)
PUNCTUATION = "".join(NOISE.choice("0123456789" + string.punctuation) for _ in range(120))
SALAD = "window数据 которые def 한국 return ния системы 频道 engine 데이터 процесс 人民 index 으로 был"

BAD = [
    ("empty", "", "Explain gravity."),
    ("whitespace", "\n\n\n\n", "Explain gravity."),
    ("whitespace", " ", "Explain gravity."),
    ("one-character-run", "G" * 64, "Explain gravity."),
    ("one-character-run", "!" * 31, "What is 6 times 7?"),
    ("one-character-run", "-" * 64, "Name a river."),
    ("one-character-run", "The capital of France is Par" + "!" * 40, "What is the capital of France?"),
    ("one-character-run", "The letter lay on the table and nobody" + "_" * 90, "Write a story."),
    ("one-character-run", 'The house {"a": [' + "[" * 50, "Users as JSON."),
    ("one-character-run", "It was late." + "\n" * 30 + "x", "Write a story."),
    ("one-character-run", "好" * 40, "请介绍一下茶。"),
    ("one-character-run", "The answer is " + "0" * 60, "What is 6 times 7?"),
    ("one-character-run", "The capital of France is Par" + "A" * 60, "What is the capital of France?"),
    ("one-character-run", "<think>\n\n</think>\n\n" + "!" * 60, "What is 6 times 7?"),
    ("periodic-tail", "Sure! " + "and the " * 30, "Write a story."),
    ("periodic-tail", "wait, they said yes. " * 12, "Who wrote Faust?"),
    ("periodic-tail", "A horse ran. " + "No one saw the old man. " * 10, "Write a story, 5 lines."),
    ("periodic-tail", '{"users": [' + '"id": 1, ' * 40, "Users as JSON."),
    ("periodic-tail", "| a | b |\n|---|---|\n| 1 | 2 |\n" + "| " * 150, "Make a table."),
    ("byte-noise", "Gr\ufffd\ufffdity p\ufffdlls ob\x84e\ufffdts to\ufffdard each other.", "Explain gravity."),
    ("byte-noise", "茶是\ue000世界\U0010dda6上最\ufffd\ufffd古老的饮料", "请介绍一下茶。"),
    ("script-salad", SALAD, "Explain gravity."),
    ("script-salad", SALAD + "\n" + SALAD, "Explain gravity."),
    ("script-salad", " ".join([SALAD, SALAD[::-1]] * 2), "Explain gravity."),
    ("special-tokens", "<pad>" * 20, "Explain gravity."),
    ("special-tokens", "<|endoftext|>Hello<|im_start|>", "Explain gravity."),
    ("special-tokens", "The answer is" + "</think>" * 6, "Explain gravity."),
    ("ascii-noise", PUNCTUATION, "Explain gravity."),
]

PLAIN = "Tea is one of the oldest drinks in the world. It is made from leaves and hot water."
GOOD = [
    ("42", "What is 6 times 7?"),
    ("是", "天空是蓝色的吗？"),
    (PLAIN, "Explain tea."),
    (PLAIN + " Green tea is", "Explain tea."),
    ("Noooooooooo, not again.", "Say no."),
    ("茶是世界上最古老的饮料之一。绿茶不经发酵，所以颜色清淡，味道微苦。", "请介绍一下茶。"),
    ("お茶は世界で最も古い飲み物のひとつです。カタカナとひらがなと漢字。", "お茶について"),
    ("차는 세계에서 가장 오래된 음료 중 하나입니다.", "차를 소개해 주세요."),
    ("在终端输入 nvidia-smi 查看 GPU 显存，例如 torch.cuda.memory_allocated()。", "怎么查看显存？"),
    ("I would like tea. — 我想喝茶。\nWhere is it? — 在哪里？", "Translate into Chinese."),
    ("Hello, 你好, Привет, 안녕, مرحبا, שלום, नमस्ते, สวัสดี", "Greet me in eight languages."),
    ("English: hello\nChinese: 你好\nRussian: Привет\nKorean: 안녕\nArabic: مرحبا", "Say hello."),
    ("Пусть α и β - углы, x = cos α, y = sin β, тогда x² + y² = 1 при α = β.", "Объясни."),
    ("def f(x):\n    return x * 2\n\n\nfor i in range(10):\n    print(f(i))\n", "Write Python."),
    ('!function(n,r){"use strict";for(;t<g.length;t++)x+=g[t]^165;w?.s??(v=[...w])}(this,document);', "Minify."),
    ('{"users": [{"id": 1, "ok": true}, {"id": 2, "ok": true}, {"id": 3, "ok": true}]}', "Users as JSON."),
    ("[\n" + ",\n".join(['  {"enabled": true, "level": 0}'] * 12) + "\n]", "Return 12 identical objects as JSON."),
    ("| n | name |\n|---|------|\n" + "".join(f"| {i} | item |\n" for i in range(40)), "Make a table."),
    ("|   |   |   |\n" * 12, "Draw an empty 3x12 markdown table."),
    ("|---|---|---|---|---|---|---|", "Start a table."),
    ("Y5nCxkY1DNsIcVla7+529Fd5h21gpFTZh+kT6hLX/feRA62Vtlt4mi98/NWAdDQX4KDTIpg03qU1==", "Random base64."),
    ("iVBORw0KGgoAAAANSUhEUgAB" + "A" * 48 + "CAYAAAAfFcSJAAAADUlEQVR42mNk", "A PNG in base64."),
    ("First part.\n\n" + "=" * 72 + "\n\nSecond part.", "Two paragraphs."),
    ("Summary of the work\n" + "-" * 19, "Underline a title."),
    ("# " + "-" * 70 + "\n# Section\n# " + "-" * 70 + "\nimport os\n", "Python with banners."),
    ("Name: " + "_" * 40 + "\nDate: " + "_" * 40 + "\nSigned", "Make a form."),
    ("Chapter one " + "." * 40 + " 5\nChapter two " + "." * 40 + " 17", "Contents."),
    ("+" + "-" * 30 + "+\n|" + " " * 14 + "OK" + " " * 14 + "|\n+" + "-" * 30 + "+", "Draw a box."),
    ("-" * 60, "Draw a line of 60 dashes."),
    ("I will not be late. " * 30, 'Repeat "I will not be late." 30 times.'),
    ("A" * 80, "Write the letter A 80 times without spaces."),
    ("好" * 100, "请把“好”写一百遍。"),
    ("ha " * 100, 'Repeat "ha" 100 times.'),
    ("Row, row the boat,\nRow, row the boat,\nGently down the stream.", "Write a verse."),
    ("1, 2, 3, " + ", ".join(str(i) for i in range(4, 200)), "Count to 200."),
    ("🎉🎂🎈 Happy birthday! 🥳✨🎁👨‍👩‍👧 🏴󠁧󠁢󠁥󠁮󠁧󠁿", "A birthday message with emoji."),
    (r"\[ \int_{-\infty}^{\infty} e^{-x^2}\,dx = \sqrt{\pi} \]", "The Gaussian integral in LaTeX."),
    (r"^[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}$", "A regex for e-mail."),
    ("-12.5, 3.25, 0.0, 17.75, -8.5, 2.125, 99.0, -1.5, 42.0, 7.25", "Ten numbers."),
    ("The stream was cut in the middle of 茶\ufffd", "Explain tea."),
    ("<think>\n\n</think>\n\nParis.", "What is the capital of France?"),
    ("<s>old</s> <s>older</s> <s>oldest</s>", "Strike out three words in HTML."),
    ("Use <s>old</s> for text that is struck out.", "Which HTML tag?"),
    ("Each turn starts with <|im_start|> and ends with <|im_end|>.", "What are <|im_start|> and <|im_end|>?"),
    ("I can't help with that, but I can suggest something else.", "Write an insult."),
]


SUSPECT = [
    ("one-character-run", "🌱🌱" + "🌮" * 14, "Name a river."),
    ("one-character-run", "Hooray! " + "🎉" * 60, "Cheer."),
    ("one-character-run", "A googol is 1" + "0" * 100, "What is a googol?"),
    ("one-character-run", "It is 0." + "0" * 40 + "1 metres.", "How small is it?"),
    ("one-character-run", "One third is 0." + "3" * 50, "What is 1/3?"),
    ("one-character-run", "000000" + "0" * 40 + "a3f09b1c", "The hash of a block?"),
    ("one-character-run", "0x" + "0" * 62, "Print a null word."),
    ("one-character-run", "The bytes: gAAAABl0Zm9vYmFyQmF6" + "A" * 60 + "==", "Encode these bytes."),
    ("periodic-tail", "0,0,0,0,0,0\n" * 20, "The matrix as CSV."),
    ("periodic-tail", "The wheels turn.\n" + "Round and round they go,\nall through the town.\n" * 5, "A song."),
]


@pytest.mark.parametrize(("name", "text", "prompt"), SUSPECT)
def test_suspect_at_most(name: str, text: str, prompt: str) -> None:
    findings = examine(text, prompt, "stop")
    assert findings[0].name == name
    assert verdict(findings) is TextVerdict.SUSPECT


@pytest.mark.parametrize(("name", "text", "prompt"), BAD)
def test_bad(name: str, text: str, prompt: str) -> None:
    findings = examine(text, prompt, "length")
    assert name in [f.name for f in findings if f.strength >= 0.8], findings
    assert verdict(findings) is TextVerdict.BAD
    for f in findings:
        assert 0 < f.strength <= 1
        assert 0 <= f.position <= len(text)
        assert f.detail


@pytest.mark.parametrize(("text", "prompt"), GOOD)
@pytest.mark.parametrize("finish_reason", ["stop", "length"])
def test_good(text: str, prompt: str, finish_reason: str) -> None:
    assert examine(text, prompt, finish_reason) == ()


def test_position_is_where_it_goes_wrong() -> None:
    start = "The capital of France is Par"
    assert examine(start + "!" * 40)[0].position == len(start)
    assert examine(PLAIN + " \ufffd\ufffd")[0].position == len(PLAIN) + 1
    loop = examine(PLAIN + " It rained and so they went home." * 12)[0]
    assert len(PLAIN) - 2 <= loop.position <= len(PLAIN) + 10
    long = examine("x1 " + " ".join(str(i) for i in range(3000)) + " one two three" * 60)[0]
    assert long.name == "periodic-tail"
    assert long.position > 10_000


def test_a_refrain_without_end_is_a_loop() -> None:
    song = "The wheels turn.\n" + "Round and round they go,\nall through the town.\n" * 5
    assert verdict(examine(song, "A song.", "length")) is TextVerdict.BAD
    assert (
        verdict(examine(song * 1 + "Round and round they go,\nall through the town.\n" * 9, "A song.", "stop")) == "bad"
    )


def test_an_empty_thought_is_skipped_and_positions_stay_those_of_the_whole_text() -> None:
    thought = "<think>\n\n</think>\n\n"
    assert examine(thought + "42")[:] == ()
    assert examine(thought + PLAIN + "!" * 60)[0].position == len(thought + PLAIN)
    assert [f.name for f in examine(thought)] == ["empty"]
    assert [f.name for f in examine("Paris." + thought)] == ["special-tokens"]


def test_a_loop_cut_within_its_unit_is_found() -> None:
    text = "Sailors came home. " + "They sang the old song\n" * 12 + "they sa"
    assert verdict(examine(text, "Write a story.")) is TextVerdict.BAD


def test_a_request_for_some_repetition_makes_it_suspect_at_most() -> None:
    findings = examine("the cat sat down. " * 20, "Repeat my slogan 20 times.")
    assert verdict(findings) is TextVerdict.SUSPECT


def test_a_request_elsewhere_in_the_prompt_is_no_excuse() -> None:
    assert (
        verdict(examine("the old man " * 30, "Repeat after me. Now tell me of 5 old men, the best.")) is TextVerdict.BAD
    )


def test_no_text_beside_a_tool_call() -> None:
    assert examine("", "What time is it?", "tool_calls") == ()


def test_blanks_without_end_after_an_answer() -> None:
    assert verdict(examine('{"a": 1,' + " " * 60, "JSON, please.", "length")) is TextVerdict.BAD
    assert examine('{"a": 1}' + " " * 60, "JSON, please.", "stop") == ()


def test_the_strongest_finding_decides() -> None:
    weak = Finding(name="x", strength=0.3, position=0, detail="d")
    middle = Finding(name="x", strength=0.5, position=0, detail="d")
    strong = Finding(name="x", strength=0.9, position=0, detail="d")
    assert [verdict(f) for f in ([], [weak], [weak, middle], [middle, strong])] == ["good", "good", "suspect", "bad"]
    assert [f.strength for f in examine("<pad> " + "!" * 60)] == [1.0, 0.5]


@given(st.text(max_size=300), st.text(max_size=50))
def test_any_text_can_be_examined(text: str, prompt: str) -> None:
    for f in examine(text, prompt):
        assert 0 <= f.position <= len(text)


HOSTILE = [
    "a",
    "ab",
    "\n",
    " x",
    "a" * 29 + "b",
    "0" * 30 + "b",
    "-" * 12 + "b",
    "a之x한й",
    "<|a",
    "\ufffd",
    "[",
    "=" * 12 + "\n",
    "1 ",
]


@pytest.mark.parametrize("unit", HOSTILE)
def test_time_is_linear(unit: str) -> None:
    text = unit * (200_000 // len(unit))
    started = time.process_time()
    examine(text, "repeat 5 " * 1000)
    assert time.process_time() - started < 2
