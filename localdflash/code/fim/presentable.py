"""Return only beginnings of an answer that are *sound* at the cursor: brackets close and the code parses.

Complete lines are returned as soon as they are sound. When the answer ends, its longest sound beginning is returned.
"""

import re
from collections.abc import Callable, Iterator
from copy import copy

from localdflash.code.fim.extent import CursorContext
from localdflash.code.fim.repeats import find_stutter
from localdflash.code.fim.stopping import Stopping

MAX_TRIED_ENDS = 24  # beginnings checked for one answer: each costs a parse
_END = re.compile(r"(?<=[\w)\]}\"'`;])(?![\w\"'`])")
_INCOMPLETE = re.compile(
    r"\b(?:return|yield|raise|throw|assert|del|import|from|with|for|while|elif|except|as|await|case|new|typeof|extends|"
    r"const|let|var|def|class|function)\Z"
)
_NAME, _CALL = re.compile(r"[\w.]+"), re.compile(r"[\w.]*\(")
_SENTENCE = re.compile(r"(?<=[.!?])(?=\s|\Z)")


class PresentableEnding:
    """`Ending` of an answer, the base of both kinds. `sound`: the check; `lead`: indentation to return first."""

    def __init__(self, cursor: CursorContext, sound: Callable[[str], bool], stopping: Stopping, lead: str = "") -> None:
        self._cursor, self._sound, self._stopping, self._lead = cursor, sound, stopping, lead
        self._pieces = list[str]()
        self._text, self._sent, self._checked = "", 0, 0

    @property
    def ended(self) -> bool:
        """See `Ending`."""
        return self._stopping.ended

    @property
    def reason(self) -> str:
        """See `Ending`."""
        return self._stopping.reason

    def push(self, text: str, logprob: float | None = None) -> str:
        """See `Ending`. Returns only complete lines; `finish` returns the rest."""
        self._read(text, logprob)
        end = self._text.rfind("\n")
        if end <= max(self._sent, self._checked):
            return ""
        self._checked = end
        return self._take_up_to(end) if self._sound(self._text[:end]) else ""

    def resumes(self) -> bool:
        """See `Ending`."""
        raise NotImplementedError

    def finish(self) -> str:
        """See `Ending`."""
        self._text += self._stopping.finish()
        end = self._sound_end(self._text.rstrip())
        return "" if end is None else self._take_up_to(end)

    def _read(self, text: str, logprob: float | None) -> None:
        self._pieces.append(text)
        self._text += self._stopping.push(text, logprob)

    def _whole(self) -> str:
        """Return the answer as it would be if it ended here, before it is cut to a sound beginning."""
        return (self._text + copy(self._stopping).finish()).rstrip()

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
        """Return the number of characters at the end of a text that begin the rest of the cursor's line."""
        rest = self._cursor.rest.strip()
        most = min(len(rest), len(whole))
        return next((n for n in range(most, 0, -1) if rest.startswith(whole[-n:])), 0)
