"""Endings of the two kinds of answers: those that an editor suggests by itself, and those that the user requested."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from localdflash.code.context.context import ContextPiece
from localdflash.code.fim.extent import CursorContext, Mode, find_cursor_context
from localdflash.code.fim.known_names import KnownNames
from localdflash.code.fim.presentable import PresentableEnding
from localdflash.code.fim.prompt import Gap
from localdflash.code.fim.python_lines import missing_blanks
from localdflash.code.fim.sound import Soundness
from localdflash.code.fim.stopping import Stopping
from localdflash.text.stream import UNSOUND

MIN_LINE_PROBABILITY = 0.1  # joint probability of the first line's tokens, for an answer to continue past its end
MAX_CONTINUED_ENDS = 2  # ends that one answer continues past; more brought nothing on HumanEval-Infilling
_CONTINUABLE_REASONS = frozenset({"line", "statement", "unsure"})


class SuggestedEnding(PresentableEnding):
    """`Ending` of an automatic answer: empty if it has an unknown name; a likely one continues until it is sound.

    `names`: those known here; `min_probability`: see `Stopping`.
    """

    def __init__(
        self,
        cursor: CursorContext,
        sound: Callable[[str], bool],
        names: KnownNames,
        word: str,
        min_probability: float,
        lead: str = "",
    ) -> None:
        super().__init__(cursor, sound, Stopping(cursor, len(word), min_probability), lead)
        self._names = names
        self._has_unknown_name = False
        self._logprob = 0.0  # sum over the first line's tokens
        self._continued = 0  # number of ends that the answer continued past

    @property
    def ended(self) -> bool:
        """See `Ending`."""
        return self._has_unknown_name or super().ended or bool(self._continued and self._sent)

    @property
    def reason(self) -> str:
        """See `Ending`."""
        return "unsure" if self._has_unknown_name else super().reason

    def push(self, text: str, logprob: float | None = None) -> str:
        """See `Ending`."""
        if not self._names.accepts(text, math.inf if logprob is None else logprob):
            self._has_unknown_name = True
            return ""
        if "\n" not in "".join(self._pieces).lstrip():
            self._logprob += -math.inf if logprob is None else logprob
        return super().push(text, logprob)

    def resumes(self) -> bool:
        """See `Ending`."""
        if self.ended or not self._should_continue():
            return False
        self._continue_past_end()
        return True

    def finish(self) -> str:
        """See `Ending`."""
        is_unknown = self._has_unknown_name or not self._names.accepts_at_end()
        return "" if is_unknown or (self._continued and self._sent) else super().finish()

    def _read(self, text: str, logprob: float | None) -> None:
        super()._read(text, logprob)
        if self._stopping.reason in _CONTINUABLE_REASONS and self._should_continue():
            self._continue_past_end()

    def _should_continue(self) -> bool:
        """Return whether to continue past this end: the answer is likely, and has no sound beginning."""
        is_likely = self._logprob >= math.log(MIN_LINE_PROBABILITY)
        if self._sent or self._continued == MAX_CONTINUED_ENDS or not is_likely:
            return False
        whole = self._whole()
        return bool(whole) and (whole.endswith("(") or self._sound_end(whole) is None)

    def _continue_past_end(self) -> None:
        """Read the answer again with a stopping rule that ends it later."""
        self._continued += 1
        self._stopping = self._stopping.later()
        self._text = "".join(map(self._stopping.push, self._pieces))


class RequestedEnding(PresentableEnding):
    """`Ending` of a requested answer: it continues past the model's ends until it is sound to its end.

    If it never is, its longest sound beginning is returned; without one, all up to the model's first end.
    """

    def __init__(self, cursor: CursorContext, sound: Callable[[str], bool], word: str, lead: str = "") -> None:
        super().__init__(cursor, sound, Stopping(cursor, len(word)), lead)
        self._passed_ends = list[int]()  # lengths at the ends that the answer continued past
        self._is_unsound = False

    @property
    def reason(self) -> str:
        """See `Ending`."""
        return UNSOUND if self._is_unsound else super().reason

    def resumes(self) -> bool:
        """See `Ending`."""
        if self.ended or len(self._passed_ends) == MAX_CONTINUED_ENDS:
            return False
        whole = self._whole()
        end = self._sound_end(whole)
        if whole and end is not None and end >= len(whole) - self._overlap(whole):
            return False
        self._passed_ends.append(len(whole))
        return True

    def finish(self) -> str:
        """See `Ending`."""
        text = super().finish()
        if text or self._sent:
            return text
        text = self._take_up_to(next((end for end in self._passed_ends if end), len(self._text.rstrip())))
        self._is_unsound = bool(text.strip())
        return text


def plan_ending(
    gap: Gap,
    others: Sequence[ContextPiece],
    mode: Mode,
    min_probability: float,
    word: str = "",
    *,
    adds_blanks: bool = True,
) -> tuple[Gap, Callable[[], PresentableEnding]]:
    """Return the gap with the blanks that a statement needs at the cursor, and a maker of the `Ending` of an answer.

    `word`: the answer begins with it; `min_probability`: see `Stopping`; 0 if the user requested the answer.
    """
    before, after = (text.replace("\r\n", "\n") for text in (gap.prefix + gap.middle, gap.suffix))
    cursor = find_cursor_context(gap.language, before, after, mode)
    if lead := missing_blanks(cursor) if adds_blanks else "":
        before, gap = before + lead, replace(gap, middle=gap.middle + lead)
        cursor = find_cursor_context(gap.language, before, after, mode)
    sound = Soundness.at(cursor, before, after, gap.closers)
    if min_probability == 0:
        return gap, partial(RequestedEnding, cursor, sound, word, lead)
    texts = (before, after, *(piece.text for piece in others))

    def suggested() -> SuggestedEnding:
        return SuggestedEnding(cursor, sound, KnownNames(cursor, word, texts), word, min_probability, lead)

    return gap, suggested
