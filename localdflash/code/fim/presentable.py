"""Return only beginnings of an answer that are *sound* at the cursor: brackets close and the code parses.

Complete lines are returned as soon as they are sound. When the answer ends, its longest sound beginning is returned. If
there is none, a likely answer continues past its end, and an answer that the user requested is returned whole.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import partial

from localdflash.code.context.context import ContextPiece
from localdflash.code.fim.extent import CursorContext, Mode, find_cursor_context
from localdflash.code.fim.known_names import KnownNames
from localdflash.code.fim.prompt import Gap
from localdflash.code.fim.python_lines import missing_blanks
from localdflash.code.fim.repeats import find_stutter
from localdflash.code.fim.sound import Soundness
from localdflash.code.fim.stopping import Stopping

MIN_LINE_PROBABILITY = 0.1  # joint probability of the first line's tokens, for an answer to continue past its end
MAX_CONTINUED_ENDS = 2  # number of ends that one answer continues past
_CONTINUABLE_REASONS = frozenset({"line", "statement", "unsure"})
MAX_TRIED_ENDS = 24  # beginnings checked for one answer: each costs a parse
_END = re.compile(r"(?<=[\w)\]}\"'`;])(?![\w\"'`])")
_INCOMPLETE = re.compile(
    r"\b(?:return|yield|raise|throw|assert|del|import|from|with|for|while|elif|except|as|await|case|new|typeof|extends|"
    r"const|let|var|def|class|function)\Z"
)
_NAME, _CALL = re.compile(r"[\w.]+"), re.compile(r"[\w.]*\(")
_SENTENCE = re.compile(r"(?<=[.!?])(?=\s|\Z)")


class PresentableEnding:
    """`Ending` of an answer that begins with `word`. `texts` hold known words; `lead`: indentation to return first."""

    def __init__(
        self,
        cursor: CursorContext,
        sound: Callable[[str], bool],
        texts: Sequence[str],
        word: str,
        min_probability: float,
        lead: str = "",
    ) -> None:
        self._cursor, self._sound, self._lead = cursor, sound, lead
        self._stopping = Stopping(cursor, len(word), min_probability)
        self._is_requested = min_probability == 0
        self._names = None if self._is_requested else KnownNames(cursor, word, texts)
        self._has_unknown_name = False
        self._pieces = list[str]()
        self._text, self._sent, self._checked = "", 0, 0
        self._logprob = 0.0  # sum over the first line's tokens
        self._continued = 0  # number of ends that the answer continued past

    @property
    def ended(self) -> bool:
        """See `Ending`."""
        return self._has_unknown_name or self._stopping.ended or bool(self._continued and self._sent)

    @property
    def reason(self) -> str:
        """See `Ending`."""
        return "unsure" if self._has_unknown_name else self._stopping.reason

    def push(self, text: str, logprob: float | None = None) -> str:
        """See `Ending`. Returns only complete lines; `finish` returns the rest."""
        if self._names and not self._names.accepts(text, math.inf if logprob is None else logprob):
            self._has_unknown_name = True
            return ""
        if "\n" not in "".join(self._pieces).lstrip():
            self._logprob += -math.inf if logprob is None else logprob
        self._pieces.append(text)
        self._text += self._stopping.push(text, logprob)
        if self._stopping.reason in _CONTINUABLE_REASONS and self._should_continue():
            self._continue_past_end()
        end = self._text.rfind("\n")
        if end <= max(self._sent, self._checked):
            return ""
        self._checked = end
        return self._take_up_to(end) if self._sound(self._text[:end]) else ""

    def resumes(self) -> bool:
        """See `Ending`."""
        if self.ended or not self._should_continue():
            return False
        self._continue_past_end()
        return True

    def finish(self) -> str:
        """See `Ending`."""
        if self._names and (self._has_unknown_name or not self._names.accepts_at_end()):
            return ""
        if self._continued and self._sent:
            return ""
        self._text += self._stopping.finish()
        whole = self._text.rstrip()
        if (end := self._sound_end(whole)) is not None:
            return self._take_up_to(end)
        return self._take_up_to(len(whole)) if self._is_requested and not self._sent else ""

    def _should_continue(self) -> bool:
        """Return whether to continue past this end: the answer is likely, not requested, and has no sound beginning."""
        is_likely = self._logprob >= math.log(MIN_LINE_PROBABILITY)
        if self._is_requested or self._sent or self._continued == MAX_CONTINUED_ENDS or not is_likely:
            return False
        whole = (self._text + copy(self._stopping).finish()).rstrip()
        return bool(whole) and (whole.endswith("(") or self._sound_end(whole) is None)

    def _continue_past_end(self) -> None:
        """Read the answer again with a stopping rule that ends it later."""
        self._continued += 1
        self._stopping = self._stopping.later()
        self._text = "".join(map(self._stopping.push, self._pieces))

    def _sound_end(self, whole: str) -> int | None:
        """Return the first length of `_ends` that is sound and not below that of the text sent, or None."""
        for number, (end, text) in enumerate(self._ends(whole)):
            if number == MAX_TRIED_ENDS or end < self._sent:
                break
            if self._sound(text):
                return end
        return None

    def _take_up_to(self, end: int) -> str:
        """Return the text from the end of the part sent up to `end`; the first such text begins with `lead`."""
        text, self._sent = self._text[self._sent : end], max(end, self._sent)
        lead, self._lead = (self._lead, "") if text else ("", self._lead)
        return lead + text

    def _ends(self, whole: str) -> Iterator[tuple[int, str]]:
        """Yield lengths at which the text may end, with the text up to there, best first."""
        if overlap := self._overlap(whole):
            end_before_overlap = len(whole) - overlap
            yield end_before_overlap, whole[:end_before_overlap].rstrip()
        is_prose = self._cursor.brackets.terminator  # non-empty in a string or comment
        repeats = find_stutter(whole.rpartition("\n")[2])
        has_sentence = is_prose and self._stopping.reason == "unsure" and _SENTENCE.search(whole)
        cut_off = "".join(self._pieces).partition(whole)[2] if whole else ""
        if not repeats and not has_sentence and (is_prose or not self._is_half_call(whole, cut_off)):
            yield len(whole), whole
        ends = [match.start() for match in re.finditer("\n", whole)]
        if not repeats:
            ends += [match.start() for match in (_SENTENCE if is_prose else _END).finditer(whole)]
        for end in sorted(set(ends), reverse=True):
            text = whole[:end]
            breaks_off = self._is_half_call(text, whole[end:] + cut_off) or _INCOMPLETE.search(self._cursor.line + text)
            if end < len(whole) and text.strip() and (is_prose or not breaks_off):
                yield end, text

    def _is_half_call(self, text: str, rest: str) -> bool:
        """Return whether `text` ends within a call that `rest` continues, unless `text` is only a name."""
        return bool(_CALL.match(rest)) and not self._cursor.rest.startswith("(") and not _NAME.fullmatch(text.strip())

    def _overlap(self, whole: str) -> int:
        """Return the number of characters at the end of a one-line text that begin the rest of the cursor's line."""
        rest = self._cursor.rest.strip()
        if "\n" in whole or not rest:
            return 0
        most = min(len(rest), len(whole))
        return next((n for n in range(most, 0, -1) if rest.startswith(whole[-n:])), 0)


def plan_ending(
    gap: Gap,
    others: Sequence[ContextPiece],
    mode: Mode,
    min_probability: float,
    word: str = "",
    *,
    adds_blanks: bool = True,
) -> tuple[Gap, Callable[[], PresentableEnding]]:
    """Return the gap with the blanks that a statement needs at the cursor, and a maker of the `Ending` of an answer."""
    before, after = (text.replace("\r\n", "\n") for text in (gap.prefix + gap.middle, gap.suffix))
    cursor = find_cursor_context(gap.language, before, after, mode)
    if lead := missing_blanks(cursor) if adds_blanks else "":
        before, gap = before + lead, replace(gap, middle=gap.middle + lead)
        cursor = find_cursor_context(gap.language, before, after, mode)
    sound, texts = Soundness.at(cursor, before, after, gap.closers), (before, after, *(piece.text for piece in others))
    return gap, partial(PresentableEnding, cursor, sound, texts, word, min_probability, lead)
