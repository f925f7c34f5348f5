"""Check that a completion turns the word at the cursor into a known name: `re.compile`, not `re.compilement`.

An unknown word is accepted in strings, comments and definitions, and if the model is confident.
"""

import builtins
import keyword
import math
import re
from collections.abc import Iterable

from localdflash.code.fim.extent import CursorContext

MIN_NEW_WORD_PROBABILITY = 0.5  # minimum geometric mean of the probabilities of an unknown word's tokens
_TAIL = re.compile(r"[^\W\d]\w*\Z")
_WORD_END = re.compile(r"\W")
_DEFINES = re.compile(
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
    """Check of the first word of one answer. The answer begins with `word`, which is before the cursor."""

    def __init__(self, cursor: CursorContext, word: str, texts: Iterable[str]) -> None:
        tail = _TAIL.search(cursor.line)
        self._start = tail[0] if tail else ""
        self._texts, self._language = texts, cursor.language
        head = cursor.line[: len(cursor.line) - len(self._start)]
        self._is_undecided = bool(
            self._start and cursor.language in _WORDS and not cursor.brackets.terminator and not _DEFINES.search(head)
        )
        self._skipped, self._added = len(word), ""
        self._logprobs = list[float]()

    def accepts(self, text: str, logprob: float) -> bool:
        """Read the next token's text; return False if the word is now complete, unknown, and of low probability."""
        if not self._is_undecided:
            return True
        new_text, self._skipped = text[self._skipped :], max(self._skipped - len(text), 0)
        if new_text:
            self._logprobs.append(logprob)
        self._added += new_text
        end = _WORD_END.search(self._added)
        return self._decide(self._added[: end.start()]) if end else True

    def accepts_at_end(self) -> bool:
        """Return whether to accept the word, now that the answer has ended."""
        return not self._is_undecided or self._decide(self._added)

    def _decide(self, ending: str) -> bool:
        self._is_undecided = False
        word = self._start + ending
        pattern = re.compile(rf"\b{re.escape(word)}\b")
        if not ending or word in _WORDS[self._language] or any(pattern.search(text) for text in self._texts):
            return True
        return sum(self._logprobs) / len(self._logprobs) >= math.log(MIN_NEW_WORD_PROBABILITY)
