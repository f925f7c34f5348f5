"""Turn a stream of token ids into a stream of text that can be shown at once and never has to be taken back.

`Detokenizer` holds bytes back until they are whole characters, `StopStrings` holds text back while it could still turn
out to be the start of a stop string; `AnswerText` is both, for the tokens of one answer. They give the same total for
any way of cutting their input into pieces.
"""

import codecs
from collections.abc import Container, Iterable, Sequence

from localdflash.errors import UsageError
from localdflash.text.tokenizer import Tokenizer


class Detokenizer:
    """Text of a growing sequence of ids. Invalid bytes become U+FFFD as in `bytes.decode(errors="replace")`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Iterable[int]) -> str:
        """The characters that these ids complete; control tokens have no text."""
        return self._decoder.decode(self._tokenizer.spell(ids))

    def finish(self) -> str:
        """An unfinished character, as U+FFFD; the object can then be used again."""
        return self._decoder.decode(b"", final=True)


class StopStrings:
    """Passes text through up to the stop string that is complete first (of those that end together, the longest)."""

    def __init__(self, stops: Sequence[str]) -> None:
        if "" in stops:
            raise UsageError("stop: an empty stop string would end every answer; leave it out")
        # A stop string with another one inside is never complete first; of the rest the first to begin is.
        self._stops = [stop for stop in stops if not any(other in stop[:-1] for other in stops)]
        self._held = ""
        self._stopped = False

    def push(self, text: str) -> tuple[str, bool]:
        """The text that is certain by now, and whether a stop string was met, after which nothing comes."""
        if self._stopped:
            return "", True
        text = self._held + text
        starts = [start for stop in self._stops if (start := text.find(stop)) >= 0]
        if starts:
            self._stopped, self._held = True, ""
            return text[: min(starts)], True
        certain = len(text) - self._could_begin_a_stop(text)
        self._held = text[certain:]
        return text[:certain], False

    def finish(self) -> str:
        """The text held back so far, at the end of the input."""
        held, self._held = self._held, ""
        return held

    def _could_begin_a_stop(self, text: str) -> int:
        """Length of the longest end of `text` that a stop string begins with."""
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0


class AnswerText:
    """The text of an answer whose tokens arrive step by step; `stopped` is set once a stop string was met."""

    def __init__(self, tokenizer: Tokenizer, ends: Container[int], stops: Sequence[str] = ()) -> None:
        self._detokenizer, self._stops, self._ends = Detokenizer(tokenizer), StopStrings(stops), ends
        self.stopped = False

    def push(self, ids: Iterable[int]) -> str:
        """The text that is certain with these ids; an end token has none."""
        text = self._detokenizer.push(token for token in ids if token not in self._ends)
        certain, self.stopped = self._stops.push(text)
        return certain

    def finish(self) -> str:
        """The text held back so far, at the end of the answer."""
        if self.stopped:
            return ""
        text, self.stopped = self._stops.push(self._detokenizer.finish())
        return text + self._stops.finish()
