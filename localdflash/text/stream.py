"""Incremental decoding: a stream of token ids becomes a stream of text that is final when it is emitted."""

import codecs
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Protocol

from localdflash.base.errors import UsageError
from localdflash.text.thoughts import overlap_at_end
from localdflash.text.tokenizer import Tokenizer

# `Repetition` ends an answer after this many rounds of the same text that have at least this many characters.
REPEAT_COUNT, MIN_REPEAT_CHARS = 4, 400
MAX_PERIOD_CHARS = 1_000  # longest repeated text
_PROBE_CHARS = 32  # length of the text's end whose previous occurrence gives the period


class TextDecoder(Protocol):
    """Incremental decoder of token ids."""

    def push(self, ids: Iterable[int]) -> str:
        """Return the text that is final after these ids."""

    def finish(self) -> str:
        """Return the held-back text; call at the end of the stream."""


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
    """Filter that ends text before the first complete stop string (the longest, if several end together).

    A stop string does not count if `is_exempt` returns True for the text up to its start and up to its end.
    """

    def __init__(self, stops: Sequence[str], is_exempt: Callable[[str], bool] | None = None) -> None:
        if "" in stops:
            raise UsageError("stop: empty stop string; leave it out")
        # A stop string in which another one ends earlier never ends the text. Of the others, the earliest start wins.
        self._stops = [stop for stop in stops if not any(other in stop[:-1] for other in stops)]
        self._is_exempt = is_exempt
        self._before = ""  # final text, kept for `is_exempt`
        self._held = ""
        self.found = ""  # the stop string that ended the text

    def push(self, text: str) -> tuple[str, bool]:
        """Return the text that is now final, and whether a stop string has ended the text."""
        if self.found:
            return "", True
        text = self._held + text
        found = [(start, stop) for stop in self._stops if (start := self._find(stop, text)) >= 0]
        if found:
            start, self.found = min(found)
            self._held = ""
            return text[:start], True
        certain = len(text) - max((overlap_at_end(text, stop) for stop in self._stops), default=0)
        self._held = text[certain:]
        if self._is_exempt:
            self._before += text[:certain]
        return text[:certain], False

    def finish(self) -> str:
        """Return the held-back text; call at the end of the text."""
        held, self._held = self._held, ""
        return held

    def _find(self, stop: str, text: str) -> int:
        """Return the offset of the first occurrence that counts; -1 if there is none."""
        start = text.find(stop)
        while (
            start >= 0
            and self._is_exempt
            and all(self._is_exempt(self._before + text[:end]) for end in (start, start + len(stop)))
        ):
            start = text.find(stop, start + 1)
        return start


UNSOUND = "unsound"  # `Ending.reason` of an answer with which the file does not parse


class Ending(Protocol):
    """Rule that ends an answer by its text, consulted after each step."""

    @property
    def ended(self) -> bool:
        """Return whether the text is complete."""

    @property
    def reason(self) -> str:
        """Return why the text ended; "" before that."""

    def push(self, text: str, logprob: float | None = None) -> str:
        """Return the text that is now final. `logprob`: of the token that the text belongs to, if known."""

    def resumes(self) -> bool:
        """Return whether the model's end token is to be ignored, so that the text continues."""

    def finish(self) -> str:
        """Return the held-back text; call at the end of the answer."""


class Repetition:
    """`Ending` of an answer that repeats one stretch of text, however the text is split into pushes."""

    def __init__(self) -> None:
        self.ended = False
        self._tail = ""

    @property
    def reason(self) -> str:
        """See `Ending`; the value is the `finish_reason` of chats with `end_repeats`."""
        return "repeat" if self.ended else ""

    def push(self, text: str, logprob: float | None = None) -> str:
        """See `Ending`."""
        if self.ended:
            return ""
        combined = self._tail + text
        for end in range(len(self._tail) + 1, len(combined) + 1):
            if _repeats(combined, end):
                self.ended = True
                return combined[len(self._tail) : end]
        self._tail = combined[-REPEAT_COUNT * MAX_PERIOD_CHARS :]
        return text

    def resumes(self) -> bool:
        """See `Ending`: an answer ends where the model ends it."""
        return False

    def finish(self) -> str:
        """See `Ending`: nothing is held back."""
        return ""


def _repeats(text: str, end: int) -> bool:
    """Return whether text[:end] ends with `REPEAT_COUNT` rounds of a text, `MIN_REPEAT_CHARS` or more in all."""
    if end < MIN_REPEAT_CHARS:
        return False
    previous = text.rfind(text[end - _PROBE_CHARS : end], max(0, end - MAX_PERIOD_CHARS - _PROBE_CHARS), end - 1)
    period = end - _PROBE_CHARS - previous
    span = max(REPEAT_COUNT * period, MIN_REPEAT_CHARS)
    return previous >= 0 and span <= end and text[end - span + period : end] == text[end - span : end - period]


class AnswerText:
    """Text of an answer, decoded step by step up to a stop string or the end by `ending`; `ends`: the end tokens.

    `is_exempt`: see `StopStrings`. `score`, with an `ending`: sum of the log-probabilities of the tokens read, end
    tokens included. The first token counts twice: without that, the answer of the highest score begins with the right
    word less often than the first one of several.
    """

    def __init__(
        self,
        decoder: TextDecoder,
        ends: Container[int],
        stops: Sequence[str] = (),
        ending: Ending | None = None,
        is_exempt: Callable[[str], bool] | None = None,
    ) -> None:
        self._decoder, self._stops, self._ends = decoder, StopStrings(stops, is_exempt), ends
        self._ending = ending
        self.score, self._has_token = 0.0, False

    @property
    def stop_string(self) -> str:
        """Return the stop string that ended the text; "" if none did."""
        return self._stops.found

    @property
    def stopped(self) -> bool:
        """Return whether the text is complete."""
        return bool(self.stop_string) or (self._ending is not None and self._ending.ended)

    @property
    def reason(self) -> str:
        """Return why `ending` ended the text; "" if it did not."""
        return self._ending.reason if self._ending else ""

    def push(self, ids: Sequence[int], logprobs: Sequence[float] = ()) -> str:
        """Return the text that is final after these ids; end tokens have none. `logprobs`: of the ids, if known."""
        if not self._ending:
            return self._decode(ids)
        if len(logprobs) != len(ids):
            return self._ending.push(self._decode(ids))
        certain = ""
        for token, logprob in zip(ids, logprobs, strict=True):
            self.score += logprob if self._has_token else 2 * logprob
            self._has_token = True
            certain += self._ending.push(self._decode([token]), logprob)
            if self._ending.ended:
                break
        return certain

    def resumes(self) -> bool:
        """Return whether `ending` ignores the model's end token."""
        return self._ending is not None and not self.stopped and self._ending.resumes()

    def finish(self) -> str:
        """Return the held-back text; call at the end of the answer."""
        text = "" if self.stop_string else self._finish_decoder()
        return self._ending.push(text) + self._ending.finish() if self._ending else text

    def _decode(self, ids: Sequence[int]) -> str:
        text = self._decoder.push(token for token in ids if token not in self._ends)
        return self._stops.push(text)[0]

    def _finish_decoder(self) -> str:
        text, _ = self._stops.push(self._decoder.finish())
        return text + self._stops.finish()
