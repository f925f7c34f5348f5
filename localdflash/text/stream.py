"""Incremental decoding: a stream of token ids becomes a stream of text that is final when it is emitted."""

import codecs
from collections.abc import Container, Iterable, Sequence
from typing import Protocol

from localdflash.base.errors import UsageError
from localdflash.text.thoughts import overlap_at_end
from localdflash.text.tokenizer import Tokenizer

# An answer repeats itself after so many rounds of the same text, and characters.
ROUNDS, MIN_CHARS = 4, 400
MAX_ROUND_CHARS = 1_000  # characters of a round
_PROBE_CHARS = 32  # characters that are looked for


class TextDecoder(Protocol):
    """Incremental decoder of token ids."""

    def push(self, ids: Iterable[int]) -> str:
        """Return the text that is final after these ids."""

    def finish(self) -> str:
        """Return the held-back text at the end of the stream."""


class Detokenizer:
    """`TextDecoder` of plain text. Invalid bytes become U+FFFD as in `bytes.decode(errors="replace")`."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Iterable[int]) -> str:
        """Return the characters that these ids complete; control tokens have no text."""
        return self._decoder.decode(self._tokenizer.spell(ids))

    def finish(self) -> str:
        """Return an unfinished character as U+FFFD; the decoder can then be used again."""
        return self._decoder.decode(b"", final=True)


class StopStrings:
    """Filter that ends text before the first complete stop string (the longest of those that end together)."""

    def __init__(self, stops: Sequence[str]) -> None:
        if "" in stops:
            raise UsageError("stop: empty stop string; leave it out")
        # A stop string that contains another one is never complete first; of the rest, the first to begin is.
        self._stops = [stop for stop in stops if not any(other in stop[:-1] for other in stops)]
        self._held = ""
        self._stopped = False

    def push(self, text: str) -> tuple[str, bool]:
        """Return the text that is final by now, and whether a stop string ended it."""
        if self._stopped:
            return "", True
        text = self._held + text
        starts = [start for stop in self._stops if (start := text.find(stop)) >= 0]
        if starts:
            self._stopped, self._held = True, ""
            return text[: min(starts)], True
        certain = len(text) - max((overlap_at_end(text, stop) for stop in self._stops), default=0)
        self._held = text[certain:]
        return text[:certain], False

    def finish(self) -> str:
        """Return the held-back text at the end of the input."""
        held, self._held = self._held, ""
        return held


class Ending(Protocol):
    """Rule that ends an answer by its text. It is consulted between two steps, so that no token is wasted."""

    @property
    def ended(self) -> bool:
        """Return whether the text is complete."""

    @property
    def reason(self) -> str:
        """Why the text ended; "" before that."""

    def push(self, text: str, logprob: float | None = None) -> str:
        """Return the text that is final by now. `logprob` is that of the text's token, if known."""

    def resumes(self) -> bool:
        """Return whether the model's end token is to be ignored, so that the text continues."""

    def finish(self) -> str:
        """Return the held-back text at the end."""


class Repetition:
    """`Ending` of an answer that repeats one stretch of text; the pieces of the text do not matter."""

    def __init__(self) -> None:
        self.ended = False
        self._tail = ""

    @property
    def reason(self) -> str:
        """See `Ending`; as /complete calls it."""
        return "repeat" if self.ended else ""

    def push(self, text: str, logprob: float | None = None) -> str:
        """See `Ending`."""
        if self.ended:
            return ""
        whole = self._tail + text
        for end in range(len(self._tail) + 1, len(whole) + 1):
            if _repeats(whole, end):
                self.ended = True
                return whole[len(self._tail) : end]
        self._tail = whole[-ROUNDS * MAX_ROUND_CHARS :]
        return text

    def resumes(self) -> bool:
        """See `Ending`: an answer ends where the model ends it."""
        return False

    def finish(self) -> str:
        """See `Ending`: nothing is held back."""
        return ""


def _repeats(text: str, end: int) -> bool:
    """Return whether text[:end] ends in a repetition."""
    if end < MIN_CHARS:
        return False
    before = text.rfind(text[end - _PROBE_CHARS : end], max(0, end - MAX_ROUND_CHARS - _PROBE_CHARS), end - 1)
    period = end - _PROBE_CHARS - before
    known = max(ROUNDS * period, MIN_CHARS)
    return before >= 0 and known <= end and text[end - known + period : end] == text[end - known : end - period]


class AnswerText:
    """Text of an answer whose tokens arrive step by step, up to a stop string or the end by `ending`."""

    def __init__(
        self, spelling: TextDecoder, ends: Container[int], stops: Sequence[str] = (), ending: Ending | None = None
    ) -> None:
        self._spelling, self._stops, self._ends = spelling, StopStrings(stops), ends
        self._ending = ending
        self._met_stop = False

    @property
    def stopped(self) -> bool:
        """Return whether the text is complete."""
        return self._met_stop or (self._ending is not None and self._ending.ended)

    @property
    def reason(self) -> str:
        """Why `ending` ended the text, if it did."""
        return self._ending.reason if self._ending else ""

    def push(self, ids: Sequence[int], logprobs: Sequence[float] = ()) -> str:
        """Return the text that is final after these ids; end tokens have none. `logprobs` are the ids', if known."""
        if not self._ending:
            return self._spelled(ids)
        if len(logprobs) != len(ids):
            return self._ending.push(self._spelled(ids))
        certain = ""
        for token, logprob in zip(ids, logprobs, strict=True):
            certain += self._ending.push(self._spelled([token]), logprob)
            if self._ending.ended:
                break
        return certain

    def resumes(self) -> bool:
        """Return whether `ending` ignores the model's end token."""
        return self._ending is not None and not self.stopped and self._ending.resumes()

    def finish(self) -> str:
        """Return the held-back text at the end of the answer."""
        rest = "" if self._met_stop else self._rest()
        return self._ending.push(rest) + self._ending.finish() if self._ending else rest

    def _spelled(self, ids: Sequence[int]) -> str:
        text = self._spelling.push(token for token in ids if token not in self._ends)
        certain, self._met_stop = self._stops.push(text)
        return certain

    def _rest(self) -> str:
        text, self._met_stop = self._stops.push(self._spelling.finish())
        return text + self._stops.finish()
