"""Text of a healthy model, to train the word model from: many prompts, at temperatures 0 to 1, four at once.

    python -m bench.text_training --url http://127.0.0.1:8080 --seconds 250 OUT.jsonl

The kinds of prompt are other ones than those of the labelled corpus in `tests/data/corpora`, which only judges. A text
that loops is left out, so that the model does not learn loops.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

FORMS = (
    "Write a letter to a friend about {}.",
    "Write a polite e-mail to a colleague about {}.",
    "Write a product description of something to do with {}.",
    "What are the advantages and disadvantages of {}?",
    "Write a short newspaper article about {}.",
    "Write a speech about {}.",
    "Compare {} with {}.",
    "Write an opinion piece on {}.",
    "Answer five frequently asked questions about {}.",
    "Write a poem about {}.",
    "Give a lesson plan for teaching children about {}.",
    "Write a review of a book about {}.",
    "Summarise what an expert would say about {}.",
    "Describe a typical day of somebody who works with {}.",
    "Write an essay on why {} matters to society.",
    "Write JavaScript code that models {}.",
    "Write an SQL schema for {}.",
    "Write a C function that has to do with {}.",
    "Write a shell script for a project about {}.",
    "What problems are there with {}, and how can they be solved?",
    "Invent an interview with a scientist who studies {}.",
    "Plan a weekend around {}.",
    "Write an advertisement for {}.",
    "Explain the science behind {} to a student.",
    "Write a joke about {}.",
    "Explain {} in simple words.",
    "Write a JSON object that describes {}.",
    "Write a play scene about {}.",
    "Write a Python function about {}.",
    "Write a diary entry of a person who loves {}.",
    "Make a table comparing {} and {}.",
    "Give me a recipe inspired by {}.",
    "Write a blog post about {}.",
    "Write a short biography of an expert in {}.",
    "Write a haiku about {}.",
    "Translate a sentence about {} into French and explain it.",
    "Write a {} guide connected with {}.",
    "Give ten tips about {}.",
    "Tell a short story about {}.",
    "List ten facts about {}.",
    "Write a fairy tale about {}.",
    "Summarise the economics of {}.",
    "Describe {} to an alien.",
    "What is the history of {}?",
    "Write instructions for repairing something used in {}.",
    "Write a dialogue between two people about {}.",
    "Write an HTML page about {}.",
    "Write a regular expression related to {} and explain it.",
    "Write a technical specification for {}.",
    "Write a formal report on {}.",
    "How do I start with {}? Give me steps.",
    "Write a Java class for {}.",
)
_TOPICS = """
    gardens, music, rivers, old books, bicycles, bread, the sea, winter, cities, mathematics, birds, hospitals,
    computers, language, mountains, trade, farming, sport, painting, law, money, sleep, friendship, rain,
    schools, engines, the brain, electricity, stars, forests, cooking, travel, clothes, health, elections,
    games, water, horses, insects, glass, bridges, newspapers, weather, families, databases, networks, films,
    markets, islands, medicine, energy, robots, theatre, fishing, steel, libraries, dreams, museums, ships,
    planets, soil, exercise
"""
TEMPERATURES = (0.0, 0.7, 0.3, 0.7, 1.0)
TOPICS = [topic.strip() for topic in _TOPICS.split(",")]


def ask(url: str, prompt: str, temperature: float, seed: int) -> str:
    body = {
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": 320,
        "temperature": temperature,
        "seed": seed,
    }
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=300, trust_env=False)
    return str(answer.raise_for_status().json()["choices"][0]["message"]["content"])


def loops(text: str) -> bool:
    """Tell whether fewer than 85 % of the runs of four words are different ones."""
    words = text.split()
    grams = list(zip(words, words[1:], words[2:], words[3:], strict=False))
    return len(words) < 10 or len(set(grams)) < 0.85 * len(grams)


def main() -> None:
    """Ask until the time is over, and write what came."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--seconds", type=float, default=250)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    chance = random.Random(args.seed)
    end = time.monotonic() + args.seconds

    def one(number: int) -> dict[str, object] | None:
        if time.monotonic() > end:
            return None
        prompt = FORMS[number % len(FORMS)].format(*chance.sample(TOPICS, 2))
        temperature = TEMPERATURES[number % len(TEMPERATURES)]
        text = ask(args.url, prompt, temperature, number)
        return None if loops(text) else {"prompt": prompt, "temperature": temperature, "text": text}

    with ThreadPoolExecutor(4) as pool, args.out.open("a", encoding="utf-8") as out:
        for row in pool.map(one, range(2000)):
            if row is not None:
                out.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
