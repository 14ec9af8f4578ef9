"""Makes `pytest_moegpu/core/textmodel.bin`, the small model of written English and code, from text that is free to use.

    python -m bench.text_model GENERATED.jsonl…

Prose: answers of the healthy SmolLM2-135M-Instruct (Apache-2.0; `bench/text_training.py` makes them, those used are
`tests/data/corpora/text-training.jsonl`), and the docstrings and help topics of Python's standard library (PSF
licence). Code: the standard library itself. Words: those of all of these, and of the model's tokenizer where they also
stand alone in the sources of Python packages. What is kept are counts: which words there are, which word classes follow
each other, which characters follow two others. No text of the labelled corpus is used.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pytest_moegpu.core.textlexicon import ENGLISH
from pytest_moegpu.core.textmodel import ALPHABET, CLASSES, TOKEN, character_classes, pack, word_class

OUT = Path(__file__).parents[1] / "pytest_moegpu/core/textmodel.bin"
LEFT_OUT = ("test", "tests", "encodings", "site-packages", "lib2to3", "idlelib", "pydoc_data")


def library() -> Iterator[str]:
    """Return the source of the standard library, file by file."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        if not set(path.relative_to(root).parts) & set(LEFT_OUT):
            yield path.read_text(encoding="utf-8", errors="replace")


def real_words(tokenizer: Path, folders: Iterable[Path]) -> set[str]:
    """Return the words of a tokenizer that also stand alone, at least twice, in the sources below some folders."""
    vocabulary = json.loads(tokenizer.read_text(encoding="utf-8"))["model"]["vocab"]
    wanted = {w[1:] for w in vocabulary if re.fullmatch("Ġ[a-z]{3,}", w)}
    seen: Counter[str] = Counter()
    for folder in folders:
        for path in folder.rglob("*.py"):
            text = path.read_text(encoding="utf-8", errors="replace")
            seen.update(w for w in re.findall(r"(?<= )[a-z]{3,}(?=[ .,])", text) if w in wanted)
    return {w for w, n in seen.items() if n >= 2}


def docstrings(source: str) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tree = ast.parse(source)
        except SyntaxError:
            return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            said = ast.get_docstring(node)
            if said and ">>>" not in said:
                yield said


def characters(texts: Iterable[str]) -> Any:
    """Return log P(c | two before), each order smoothed with the next lower one (Witten and Bell 1991)."""
    counts = np.zeros(ALPHABET**3, dtype=np.float64)
    for text in texts:
        c = character_classes(text)
        if len(c) > 2:
            np.add.at(counts, (c[:-2] * ALPHABET + c[1:-1]) * ALPHABET + c[2:], 1)
    three = counts.reshape(ALPHABET, ALPHABET, ALPHABET)
    lower = np.full(ALPHABET, 1 / ALPHABET)
    one, two = three.sum((0, 1)), three.sum(0)
    for table in (one, two, three):
        kinds = (table > 0).sum(-1, keepdims=True)
        total = table.sum(-1, keepdims=True)
        lower = np.where(total > 0, (table + kinds * lower) / np.maximum(total + kinds, 1), lower)
    return np.log(np.maximum(lower, 3e-4)).reshape(-1)


def pairs(texts: Iterable[str]) -> Any:
    """Return the pointwise mutual information of neighbouring word classes, with half a count added by chance."""
    counts = np.zeros((len(CLASSES), len(CLASSES)))
    for text in texts:
        ids = np.array([word_class(t) for t in TOKEN.findall(text)], dtype=np.int64)
        if len(ids) > 1:
            np.add.at(counts, (ids[:-1], ids[1:]), 1)
    total = counts.sum()
    first, second = counts.sum(1, keepdims=True) + 1, counts.sum(0, keepdims=True) + 1
    expected = first * second / total
    return np.clip(np.log((counts + 2 * np.minimum(expected, 1)) / (expected + 2 * np.minimum(expected, 1))), -4, 4)


def main() -> None:
    """Count, and write the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", type=Path, required=True, help="tokenizer.json of the model")
    parser.add_argument("--sources", type=Path, nargs="+", required=True, help="folders of Python packages")
    parser.add_argument("generated", nargs="+", type=Path)
    args = parser.parse_args()
    told = [json.loads(line)["text"] for p in args.generated for line in p.read_text(encoding="utf-8").splitlines()]
    sources = list(library())
    from pydoc_data.topics import topics  # type: ignore[import-not-found,unused-ignore]

    documents = [*(d for s in sources for d in docstrings(s)), *topics.values()]
    seen = Counter(w for t in told for w in re.findall(r"[a-z]+", t.lower()))
    technical = Counter(w for t in (*documents, *sources) for w in re.findall(r"[A-Z]?[a-z]+", t))
    words = {w for w in seen if len(w) > 1} | {w.lower() for w, n in technical.items() if n >= 4 and len(w) > 2}
    words |= {w for w in ENGLISH if w.isalpha()}
    words |= real_words(args.tokenizer, args.sources)
    prose = [*told, *documents]
    # Instructions and answers are told more than they are documented: each text of the model counts four times.
    OUT.write_bytes(pack(sorted(words), pairs([*told * 4, *documents]), characters(prose), characters(sources)))
    print(
        f"{len(told)} texts of {sum(map(len, told))} characters, {len(documents)} documents of "
        f"{sum(map(len, documents))}, {sum(map(len, sources))} characters of code; {len(words)} words, "
        f"{OUT.stat().st_size} bytes"
    )


if __name__ == "__main__":
    main()
