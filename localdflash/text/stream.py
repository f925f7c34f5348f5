"""Turn a stream of token ids into a stream of text that can be shown at once and never has to be taken back.

`Detokenizer` holds bytes back until they are whole characters (a chat's answer is spelled as its `answer_format` says),
`StopStrings` holds text back while it could still turn out to be the start of a stop string, an `Ending` ends it by
what it says; `AnswerText` is all three, for the tokens of one answer. They give the same total for any way of cutting
their input into pieces.
"""

import codecs
from collections.abc import Container, Iterable, Sequence
from typing import Protocol

from localdflash.base.errors import UsageError
from localdflash.text.tokenizer import Tokenizer


class Spelling(Protocol):
    """What a growing sequence of ids says."""

    def push(self, ids: Iterable[int]) -> str:
        """The text that is certain with these ids."""

    def finish(self) -> str:
        """The text held back so far, at the end."""


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


class Ending(Protocol):
    """Decides by an answer's text where it ends. Asked between two steps, so that no token is wasted."""

    @property
    def ended(self) -> bool:
        """Whether nothing comes any more."""

    @property
    def reason(self) -> str:
        """Why the text ended; "" while it goes on."""

    def push(self, text: str, logprob: float | None = None) -> str:
        """The text that is certain by now. `logprob` is that of the token whose text this is, if known."""

    def resumes(self) -> bool:
        """Whether the end that the model has written does not count; if so the text goes on."""

    def finish(self) -> str:
        """The text held back so far, at the end."""


class AnswerText:
    """The text of an answer whose tokens arrive step by step, up to a stop string or to where `ending` says."""

    def __init__(
        self, spelling: Spelling, ends: Container[int], stops: Sequence[str] = (), ending: Ending | None = None
    ) -> None:
        self._spelling, self._stops, self._ends = spelling, StopStrings(stops), ends
        self._ending = ending
        self._met = False  # a stop string

    @property
    def stopped(self) -> bool:
        """Whether nothing comes any more."""
        return self._met or (self._ending is not None and self._ending.ended)

    @property
    def reason(self) -> str:
        """Why `ending` ended the text, if it did."""
        return self._ending.reason if self._ending else ""

    def push(self, ids: Sequence[int], logprobs: Sequence[float] = ()) -> str:
        """The text that is certain with these ids; an end token has none. `logprobs` are those of the ids, if known."""
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
        """Whether the model's end does not count, by what `ending` says."""
        return self._ending is not None and not self.stopped and self._ending.resumes()

    def finish(self) -> str:
        """The text held back so far, at the end of the answer."""
        rest = "" if self._met else self._rest()
        return self._ending.push(rest) + self._ending.finish() if self._ending else rest

    def _spelled(self, ids: Sequence[int]) -> str:
        text = self._spelling.push(token for token in ids if token not in self._ends)
        certain, self._met = self._stops.push(text)
        return certain

    def _rest(self) -> str:
        text, self._met = self._stops.push(self._spelling.finish())
        return text + self._stops.finish()
