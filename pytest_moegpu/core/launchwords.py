"""A command line as people paste it, cut into words as a shell does, each with the text it was written in."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_moegpu.errors import UserError

__all__ = ["Word", "quote", "split_words"]

_OPERATORS = ";|&<>\n"
_SPACE = " \t\r"
_ESCAPED_IN_DOUBLE = '"\\$`'


@dataclass(frozen=True, kw_only=True)
class Word:
    """One word of a command line.

    Args:
        text: What the program gets. Variables stay as they are written.
        raw: How it was written, with its quotes.
        start: Where it begins in the whole text.
        end: Where it ends.
        command: Number of the command it belongs to: `;`, `|`, `&&`, a redirection or a comment begin another one.
    """

    text: str
    raw: str
    start: int
    end: int
    command: int = 0


def split_words(text: str) -> tuple[Word, ...]:
    """Cut a text into words by the rules of the shell: quotes, backslashes, continued lines, operators, comments.

    Raises:
        UserError: A quote that is not closed; says where it begins.
    """
    found: list[Word] = []
    command, at = 0, 0
    while at < len(text):
        here = text[at]
        if here in _SPACE or text.startswith(("\\\n", "\\\r\n"), at):
            at += 1 if here in _SPACE else text.index("\n", at) - at + 1
        elif here in _OPERATORS:
            command += 1
            at += 1
        elif here == "#":
            command += 1
            at = text.find("\n", at) if "\n" in text[at:] else len(text)
        else:
            end, word = _word(text, at)
            if end < len(text) and text[end] in "<>" and word.isdecimal():
                # The number of what is redirected, as in `2>&1`.
                command += 1
            else:
                found.append(Word(text=word, raw=text[at:end], start=at, end=end, command=command))
            at = end
    return tuple(found)


def _word(text: str, at: int) -> tuple[int, str]:
    """Read one word; return where it ends, and what it says."""
    said: list[str] = []
    quote, began = "", at
    while at < len(text):
        here = text[at]
        if quote:
            if here == quote:
                quote = ""
            elif here == "\\" and quote == '"' and text[at + 1 : at + 2] in _ESCAPED_IN_DOUBLE:
                at += 1
                said.append(text[at : at + 1])
            else:
                said.append(here)
        elif here in "'\"":
            quote, began = here, at
        elif here == "\\":
            if text.startswith(("\\\n", "\\\r\n"), at):
                at = text.index("\n", at)
            else:
                at += 1
                said.append(text[at : at + 1])
        elif here in _SPACE or here in _OPERATORS:
            break
        else:
            said.append(here)
        at += 1
    if quote:
        raise UserError(f"the quote {quote} at character {began + 1} of the command line is not closed")
    return at, "".join(said)


def quote(word: str) -> str:
    """Write a word so that a shell reads it as it is."""
    import shlex  # here, because an idle plugin should not pay for it

    return shlex.quote(word)
