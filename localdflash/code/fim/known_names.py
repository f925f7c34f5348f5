"""Judge whether the word at the cursor becomes a known one: `re.compi` may become `re.compile`, not `re.compilement`.

A new word is accepted in strings, comments and definitions, or if the model is confident.
"""

import builtins
import keyword
import math
import re
from collections.abc import Iterable

from localdflash.code.fim.extent import CursorContext

MIN_NEW_WORD_PROBABILITY = 0.5  # geometric mean of the probabilities of a new word's tokens
_TAIL = re.compile(r"[^\W\d]\w*\Z")
_WORD_END = re.compile(r"\W")
_NAMED = re.compile(
    r"(?:\b(?:def|class|function|const|let|var|fn|func|type|interface|struct|enum|trait|impl|mod|import|from|as|for|"
    r"with|local|static|lambda)|[(,{*&|])\s*\Z|^\s*\Z"
)
_SCRIPT = frozenset(
    re.findall(
        r"\w+",
        """
        abstract any as async await boolean break case catch class const continue debugger declare default delete do
        else enum export extends false finally for from function get if implements import in infer instanceof
        interface is keyof let namespace never new null number of override package private protected public readonly
        require return satisfies set static string super switch symbol this throw true try type typeof undefined
        unknown var void while yield Array Boolean Date Error JSON Map Math Number Object Promise Proxy RegExp Set
        String Symbol TypeError console document globalThis length module process prototype push window
        """,
    )
)
_PYTHON = frozenset([*keyword.kwlist, *keyword.softkwlist, *dir(builtins), "self", "cls"])
_WORDS = {"python": _PYTHON, "javascript": _SCRIPT, "typescript": _SCRIPT, "tsx": _SCRIPT}


class KnownNames:
    """Judge of one answer, whose first `len(word)` characters are before the cursor already."""

    def __init__(self, cursor: CursorContext, word: str, texts: Iterable[str]) -> None:
        tail = _TAIL.search(cursor.line)
        self._begun = tail[0] if tail else ""
        self._texts, self._language = texts, cursor.language
        head = cursor.line[: len(cursor.line) - len(self._begun)]
        self._is_undecided = bool(
            self._begun and cursor.language in _WORDS and not cursor.brackets.terminator and not _NAMED.search(head)
        )
        self._skipped, self._added = len(word), ""
        self._logprobs = list[float]()

    def plausible(self, text: str, logprob: float) -> bool:
        """Read the next token; return False if the word is now complete, unknown, and of low probability."""
        if not self._is_undecided:
            return True
        added, self._skipped = text[self._skipped :], max(self._skipped - len(text), 0)
        if added:
            self._logprobs.append(logprob)
        self._added += added
        end = _WORD_END.search(self._added)
        return self._judge(self._added[: end.start()]) if end else True

    def plausible_at_the_end(self) -> bool:
        """Return the judgement once the answer has ended."""
        return not self._is_undecided or self._judge(self._added)

    def _judge(self, rest: str) -> bool:
        self._is_undecided = False
        word = self._begun + rest
        whole = re.compile(rf"\b{re.escape(word)}\b")
        if not rest or word in _WORDS[self._language] or any(whole.search(text) for text in self._texts):
            return True
        return sum(self._logprobs) / len(self._logprobs) >= math.log(MIN_NEW_WORD_PROBABILITY)
