"""Search words as queries, and what a list shows of a chat: its title, and the passage that was found.

A word is looked up in the index; the last one may be the beginning of a word. One that the index does not know as a
word (`->`, or part of a text in Chinese, which has no spaces) is searched in the texts themselves.
"""

import re
from dataclasses import dataclass

from localdflash.chat.messages import Message

TITLE = 60  # characters
EXCERPT = 120
_BEFORE = 30  # characters that an excerpt shows before what was found
# Scripts without spaces between words: Thai to Khmer, Japanese, Chinese.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
_UNKNOWN = re.compile("[\x00\ud800-\udfff]")  # what a query cannot hold


@dataclass(frozen=True, slots=True)
class Query:
    """What to search for. `index` is in FTS5's language, "" without a word; `parts` must be in the text literally."""

    words: tuple[str, ...]
    index: str
    parts: tuple[str, ...]


def query(text: str) -> Query:
    """The query for some words: all of them, in one message or in a title."""
    words = tuple(dict.fromkeys(_UNKNOWN.sub(" ", text).split()))
    known = [word for word in words if any(map(str.isalnum, word)) and not _UNSPACED.search(word)]
    terms = ['"' + word.replace('"', '""') + '"' for word in known]
    if terms and known[-1] == words[-1]:
        terms[-1] += "*"
    return Query(words, " ".join(terms), tuple(word for word in words if word not in known))


def title(message: Message) -> str:
    """The title of a chat that begins with this message: its first line with a word, or what is attached."""
    lines = (*message.text.split("\n"), *(one.name for one in message.attachments))
    named = next((line for line in lines if any(map(str.isalnum, line))), "")
    return shortened(" ".join(named.split()), TITLE)


def excerpt(text: str, words: tuple[str, ...] = ()) -> str:
    """One line of a text, around the first of the words that is found; else its beginning."""
    found = (_place(word, text) for word in words)
    first = min((place for place in found if place >= 0), default=0)
    start = max(first - _BEFORE, 0)
    line = " ".join(text[start : start + 4 * EXCERPT].split())
    return shortened("…" + line if start else line, EXCERPT)


def _place(word: str, text: str) -> int:
    """The place of a word in a text, preferably at the beginning of one; -1 if it is spelled otherwise."""
    sought = re.escape(word)
    match = re.search(rf"(?<!\w){sought}", text, re.IGNORECASE) or re.search(sought, text, re.IGNORECASE)
    return match.start() if match else -1


def shortened(line: str, width: int) -> str:
    """At most so many characters, cut between words if that loses little."""
    if len(line) <= width:
        return line
    cut = line[: width - 1]
    space = cut.rfind(" ")
    return (cut[:space] if space > width // 2 else cut).rstrip() + "…"
