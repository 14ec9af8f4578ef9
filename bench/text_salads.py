"""Stretches of text to fit the weights of the word model with: whole ones, and salads made of them by chance."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from pathlib import Path

from bench.text_model import docstrings, library
from pytest_moegpu.core.textlexicon import ENGLISH
from pytest_moegpu.core.textmodel import shipped_model
from pytest_moegpu.core.textwords import blocks

__all__ = ["forms", "pieces", "salads", "whole"]

_NAMES = (
    "Ana Ben Kira Goran Mei Dev Oslo Riga Lima Quito apple pear chair table lamp red green blue active closed pending "
    "north south Smith Jones Patel price total count level mode status owner city email phone title year genre rating "
    "artist album breed weight"
)
_LEAST_LETTERS = 25
_ROOT = Path(__file__).parents[1]


_CODE = (
    "interface {A} {\n  id: number;\n  {b}?: string[];\n}\n\n"
    "export async function get{A}(url: string): Promise<{A}[]> {\n"
    "  const r = await fetch(`${url}/{c}`);\n  return (await r.json()).map((x: {A}) => x.{b});\n}",
    "func {b}{A}(in []string) (map[string]int, error) {\n\tout := map[string]int{}\n"
    "\tfor _, s := range in {\n\t\tout[s]++\n"
    "\t}\n\treturn out, nil\n}",
    "pub fn {b}_{c}(xs: &[u32]) -> Option<u32> {\n    let mut it = xs.iter().copied();\n    let first = it.next()?;\n"
    "    Some(it.fold(first, |a, x| a.max(x)))\n}",
    "public class {A} {\n    private final int {b};\n    public {A}(int {b}) { this.{b} = {b}; }\n"
    "    public int get{A}() {"
    " return {b}; }\n}",
    "#include <stdio.h>\nint main(void) {\n    int {b} = 0;\n    "
    'for (int i = 0; i < 9; i++) {b} += i;\n    printf("%d\\n", {b});'
    "\n    return 0;\n}",
    "const {b}{A} = ({c}) => {c}.filter((x) => x.{b} > 3).map(({b}) => ({ ...{b}, ok: true }));\n"
    "module.exports = { {b}{A} };",
    'for f in "$@"; do\n  {b}=$(grep -c {c} "$f")\n  [[ ${b} -gt 3 ]] && echo "${f##*/}: ${b}" >&2\ndone',
    '<div class="{b}">\n  <h2>{A}</h2>\n  <ul>\n    <li><a href="/{c}">{A}</a></li>\n  </ul>\n</div>',
    ".{b} {\n  display: flex;\n  margin: 0 auto;\n  color: #333;\n}\n\n.{c}:hover {\n  opacity: 0.8;\n}",
    "SELECT {b}, COUNT(*) AS n FROM {c}s JOIN {b}s ON {b}s.id = {c}s.{b}_id WHERE {c} > 3 GROUP BY"
    " {b} ORDER BY n DESC;",
)


def _enough(text: str) -> bool:
    return len(re.findall("[A-Za-z]", text)) >= _LEAST_LETTERS


def _snippet(chance: random.Random, names: Sequence[str]) -> str:
    a, b, c = (chance.choice(names) for _ in range(3))
    code = chance.choice(_CODE)
    for mark, word in (("{A}", a.capitalize()), ("{b}", b.lower()), ("{c}", c.lower())):
        code = code.replace(mark, word)
    return code


def _spoken(chance: random.Random, about: str) -> str:
    said = (
        "Where is the {}?",
        "No, no. Not the {}, not today!",
        "Yes, yes, I know.",
        "Why not?",
        "Because of {}.",
        "Oh!",
    )
    how = ("she asked", "he said", "they answered", "said Ana", "I replied")
    return f'"{chance.choice(said).format(about)}" {chance.choice(how)}.'


def whole(chance: random.Random, generated: Sequence[str]) -> list[str]:
    """Return stretches of code, docstrings, the pages of this project, and answers of the healthy model."""
    sources = list(library())
    chance.shuffle(sources)
    out = []
    for source in sources[:250]:
        lines = source.splitlines()
        for _ in range(2):
            at = chance.randrange(max(1, len(lines) - 12))
            out.append("\n".join(lines[at : at + chance.randint(4, 12)])[:400])
        out += [piece for _, piece in blocks(source, 350)][: chance.randint(0, 3)]
        told = list(docstrings(source))
        if told:
            out.append(chance.choice(told)[: chance.randint(60, 400)])
    for module in sorted((_ROOT / "pytest_moegpu").rglob("*.py")):
        cut = [piece for _, piece in blocks(module.read_text(encoding="utf-8"), 350)]
        out += [*cut[:3], *cut[3::4]]
    for page in sorted((_ROOT / "docs").rglob("*.md")):
        out += [piece for _, piece in blocks(page.read_text(encoding="utf-8"), 350)]
    for text in generated:
        out += [text[at : at + 300] for at in range(0, len(text) - 100, 300)]
    return [text for text in out if _enough(text)]


def _form(chance: random.Random, names: Sequence[str], i: int) -> str:
    rows, fields = chance.randint(2, 9), chance.sample(names, chance.randint(2, 6))

    def value() -> str:
        first = chance.choice(names)
        return chance.choice([first, str(chance.randint(0, 999)), f"{first} {chance.choice(names)}"])

    def record(fields: list[str] = fields) -> dict[str, str]:
        return {f.lower(): value() for f in fields}

    width = len(fields)
    ways = (
        lambda: json.dumps([record() for _ in range(rows)], indent=2),
        lambda: json.dumps([record() for _ in range(rows)]),
        lambda: "\n".join(f"| {' | '.join(value() for _ in range(width))} |" for _ in range(rows)),
        lambda: "\n".join(",".join(value() for _ in range(width)) for _ in range(rows)),
        lambda: "\n".join(f"{n + 1}. Clean the {value().lower()}." for n in range(rows)),
        lambda: "\n".join(f"{f.lower()}:\n  {k}: {v}" for f in fields for k, v in record().items()),
        lambda: "\n".join(f"- **{f}**: {value()}" for f in fields),
        lambda: ", ".join(chance.choice(names) for _ in range(rows + 2)),
        lambda: "\n".join(f"INSERT INTO t VALUES ('{value()}', '{value()}');" for _ in range(rows)),
        lambda: _snippet(chance, names),
        lambda: _snippet(chance, names),
        lambda: "\n".join(_spoken(chance, value()) for _ in range(rows)),
    )
    return ways[i % len(ways)]()[:400]


def forms(chance: random.Random, count: int) -> list[str]:
    """Return tables, lists, JSON, CSV, YAML, SQL, code and talk of a few words: whole, though no prose."""
    out = [_form(chance, _NAMES.split(), i) for i in range(count)]
    return [text for text in out if _enough(text)]


def pieces(tokenizer: Path) -> list[str]:
    """Return the Latin pieces of a tokenizer's vocabulary, the commonest first."""
    vocabulary = json.loads(tokenizer.read_text(encoding="utf-8"))["model"]["vocab"]
    shown = (word.replace("Ġ", " ").replace("Ċ", "\n") for word in sorted(vocabulary, key=vocabulary.__getitem__))
    return [word for word in shown if all(ord(c) < 0x250 for c in word)]


def salads(chance: random.Random, whole_ones: Sequence[str], tokens: Sequence[str], count: int) -> list[str]:
    """Return salads: shuffled or drawn words or pieces, prose with wrong tokens, pairs of words."""
    words = [w for text in whole_ones for w in text.split()]
    english = [w for w in shipped_model().words if len(w) > 3]
    english.sort()
    spaced = [t for t in tokens if t[0] == " "]
    out = []
    prose = [text for text in whole_ones if not re.search(r"[{}=<>|_]", text) and len(text) > 60]
    for i in range(count):
        n = chance.randint(8, 70)
        few = chance.sample(list(tokens), chance.randint(8, 30))
        common = list(tokens[: chance.choice([800, 3000, 8000])])
        kind = i % 10
        if kind == 4:
            shuffled = chance.choice(whole_ones).split()
            chance.shuffle(shuffled)
            out.append(" ".join(shuffled))
        elif kind == 8:
            rate = chance.uniform(0.12, 0.4)
            said = chance.choice(prose).split()
            # A wrong token may replace a word, or come out glued to it.
            out.append(
                "".join(
                    f" {w}" if chance.random() > rate else chance.choice((f" {w}", "")) + chance.choice(tokens)
                    for w in said
                )
            )
        elif kind == 9:
            said = [w for _ in range(3) for w in chance.choice(prose).split()]
            starts = [chance.randrange(len(said) - 1) for _ in range(n // 2)]
            out.append(" ".join(w for at in starts for w in said[at : at + 2]))
        elif kind == 5:
            half = (f" {chance.choice(words)}" if chance.random() < 0.5 else chance.choice(tokens) for _ in range(n))
            out.append("".join(half))
        elif kind in (0, 7):
            drawn = words if kind == 0 else [*chance.sample(english, 20), *chance.sample(ENGLISH, 12)]
            out.append(" ".join(chance.choice(drawn) for _ in range(n)))
        else:
            out.append("".join(chance.choice({1: tokens, 2: common, 3: few}.get(kind, spaced)) for _ in range(n)))
    return [text for text in out if _enough(text)]
