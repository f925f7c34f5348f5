"""Show no text twice when an answer is requested again after the daemon went away."""

from localdflash.chat.messages import StepRecord

AnswerPart = tuple[str, StepRecord | None]


class Replay:
    """Comparison of a repeated answer with `text`, the text already shown."""

    def __init__(self) -> None:
        self.text = ""
        self._again: list[AnswerPart] | None = None  # what came since the answer was asked for again, while it is known
        self._length = 0  # of its text

    def begin_again(self) -> None:
        """Start over: the answer arrives once more, from its start."""
        self._again, self._length = [] if self.text else None, 0

    def push(self, text: str, step: StepRecord | None) -> tuple[bool, list[AnswerPart]]:
        """Return whether the answer differs and starts over, and the parts to show now."""
        if self._again is None:
            self.text += text
            return False, [(text, step)]
        self._again.append((text, step))
        known, self._length = self.text[self._length :], self._length + len(text)
        if known.startswith(text):
            if self._length == len(self.text):
                self._again = None
            return False, []
        if text.startswith(known):
            self._again, new = None, text[len(known) :]
            self.text += new
            return False, [(new, step and _last_tokens(step, len(new.encode("utf-8", "replace"))))]
        return True, self._all_anew()

    def finish(self) -> tuple[bool, list[AnswerPart]]:
        """Return the same at the end: an answer shorter than before differs."""
        return (True, self._all_anew()) if self._again is not None else (False, [])

    def _all_anew(self) -> list[AnswerPart]:
        told, self._again = self._again or [], None
        self.text = "".join(text for text, _ in told)
        return told


def _last_tokens(step: StepRecord, size: int) -> StepRecord:
    """Return the last tokens of a step whose text has `size` bytes; a token across the cut is cut."""
    sizes: list[int] = []
    for token in reversed(step.sizes):
        if size <= 0:
            break
        sizes.insert(0, min(token, size))
        size -= token
    before = len(step.sizes) - len(sizes)
    accepted = max(step.accepted - before, 0)
    return StepRecord(step.drafter, max(step.drafted - before, accepted), accepted, tuple(sizes), step.ms)
