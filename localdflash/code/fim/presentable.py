"""Present of an answer only text that is sound at the cursor, however the answer continues or breaks off.

Lines are passed on as soon as they are complete and sound. At the end the longest sound beginning is kept. If nothing
is sound, a text whose first line is of high probability continues past its end: a header into its body, a docstring to
its quotes. If the user requested the text, an unsound one is returned whole.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from copy import copy

from localdflash.code.fim.extent import Extent
from localdflash.code.fim.known_names import KnownNames
from localdflash.code.fim.repeats import stutter
from localdflash.code.fim.stopping import Stopping

MIN_LINE_PROBABILITY = 0.1  # of the first line's tokens together, for a text to continue past its end
MAX_PASSED_ENDS = 2
_PASSABLE = frozenset({"line", "statement", "unsure"})
MAX_TRIED_ENDS = 24  # of one answer: each costs a parse
_END = re.compile(r"(?<=[\w)\]}\"'`;])(?![\w\"'`])")
_WANTS_MORE = re.compile(
    r"\b(?:return|yield|raise|throw|assert|del|import|from|with|for|while|elif|except|as|await|case|new|typeof|extends|"
    r"const|let|var|def|class|function)\Z"
)
_SENTENCE = re.compile(r"(?<=[.!?])(?=\s|\Z)")


class PresentableEnding:
    """`Ending` around another one. `lead` comes before any text; `asked`: the user requested the text."""

    def __init__(
        self,
        stopping: Stopping,
        extent: Extent,
        sound: Callable[[str], bool],
        names: KnownNames | None,
        lead: str = "",
        *,
        asked: bool,
    ) -> None:
        self._stopping, self._extent, self._sound, self._names, self._asked = stopping, extent, sound, names, asked
        self._text, self._sent, self._looked = "", 0, 0
        self._lead, self._doubt = lead, ""
        self._pieces = list[str]()
        self._logprob = 0.0  # of the first line
        self._passed = 0  # number of ends that the text continued past

    @classmethod
    def at(
        cls,
        extent: Extent,
        sound: Callable[[str], bool],
        texts: Sequence[str],
        word: str,
        least_sure: float,
        lead: str = "",
    ) -> "PresentableEnding":
        """Return the ending of a text that begins with `word`. `texts`: the file and other code, whose words are known.

        `least_sure`: see `Stopping`; 0 if the user requested the text.
        """
        asked = least_sure == 0
        names = None if asked else KnownNames(extent, word, texts)
        return cls(Stopping(extent, len(word), least_sure), extent, sound, names, lead, asked=asked)

    @property
    def ended(self) -> bool:
        """See `Ending`."""
        return bool(self._doubt) or self._stopping.ended or bool(self._passed and self._sent)

    @property
    def reason(self) -> str:
        """See `Ending`."""
        return self._doubt or self._stopping.reason

    def push(self, text: str, logprob: float | None = None) -> str:
        """See `Ending`. Returns complete lines only; the rest comes with `finish`."""
        if self._names and not self._names.plausible(text, math.inf if logprob is None else logprob):
            self._doubt = "unsure"
            return ""
        self._pieces.append(text)
        self._weigh(logprob)
        self._text += self._stopping.push(text, logprob)
        if self._stopping.reason in _PASSABLE and self._is_to_go_on():
            self._pass()
        end = self._text.rfind("\n")
        if end <= max(self._sent, self._looked):
            return ""
        self._looked = end
        return self._up_to(end) if self._sound(self._text[:end]) else ""

    def resumes(self) -> bool:
        """See `Ending`."""
        if self.ended or not self._is_to_go_on():
            return False
        self._pass()
        return True

    def finish(self) -> str:
        """See `Ending`."""
        if self._doubt or (self._passed and self._sent) or (self._names and not self._names.plausible_at_the_end()):
            return ""
        self._text += self._stopping.finish()
        whole = self._text.rstrip()
        if (end := self._sound_end(whole)) is not None:
            return self._up_to(end)
        return self._up_to(len(whole)) if self._asked and not self._sent else ""

    def _is_to_go_on(self) -> bool:
        """Return whether a text that would end here continues."""
        is_likely = self._logprob >= math.log(MIN_LINE_PROBABILITY)
        if self._asked or self._sent or self._passed == MAX_PASSED_ENDS or not is_likely:
            return False
        whole = (self._text + copy(self._stopping).finish()).rstrip()
        return bool(whole) and self._sound_end(whole) is None

    def _weigh(self, logprob: float | None) -> None:
        """Add the log-probability of the newest piece, if it belongs to the first line."""
        if "\n" not in "".join(self._pieces[:-1]).lstrip():
            self._logprob += -math.inf if logprob is None else logprob

    def _pass(self) -> None:
        """Continue past this end: read the pieces again up to a later one."""
        self._passed += 1
        self._stopping = self._stopping.later()
        self._text = "".join(map(self._stopping.push, self._pieces))

    def _sound_end(self, whole: str) -> int | None:
        """Return the end of the longest sound beginning; None if there is none behind the text sent."""
        for number, (end, text) in enumerate(self._ends(whole)):
            if number == MAX_TRIED_ENDS or end < self._sent:
                break
            if self._sound(text):
                return end
        return None

    def _up_to(self, end: int) -> str:
        """Return the text after the part sent, up to this end."""
        text, self._sent = self._text[self._sent : end], max(end, self._sent)
        if text:
            text, self._lead = self._lead + text, ""
        return text

    def _ends(self, whole: str) -> Iterator[tuple[int, str]]:
        """Yield where the text may end, the best place first."""
        overlap = self._overlap(whole)
        if overlap:
            kept = len(whole) - overlap
            yield kept, whole[:kept].rstrip()
        prose = self._extent.brackets.inside
        ran_away = stutter(whole.rpartition("\n")[2])
        half = prose and self._stopping.reason == "unsure" and _SENTENCE.search(whole)
        if not ran_away and not half:
            yield len(whole), whole
        ends = [found.start() for found in re.finditer("\n", whole)]
        if not ran_away:
            ends += [found.start() for found in (_SENTENCE if prose else _END).finditer(whole)]
        for end in sorted(set(ends), reverse=True):
            text = whole[:end]
            if end < len(whole) and text.strip() and not (not prose and _WANTS_MORE.search(text)):
                yield end, text

    def _overlap(self, whole: str) -> int:
        """Return how many characters at the text's end also begin the rest of the cursor's line."""
        rest = self._extent.rest.strip()
        if "\n" in whole or not rest:
            return 0
        most = min(len(rest), len(whole))
        return next((n for n in range(most, 0, -1) if rest.startswith(whole[-n:])), 0)
