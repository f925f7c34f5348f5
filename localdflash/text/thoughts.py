r"""What a model thought before its answer, and the answer, as one text: the form in which both are shown and kept.

The text is that of Qwen's models, `<think>\n...\n</think>\n\n...`, whatever the model's own marks are (see
`answer_format`). Thoughts begin the text; a mark further down is a part of the answer.
"""

OPENING, CLOSING = "<think>", "</think>"


def joined(thoughts: str, said: str) -> str:
    """The one text of both."""
    return f"{OPENING}\n{thoughts}\n{CLOSING}\n\n{said}" if thoughts else said


def split(text: str) -> tuple[str, str, bool]:
    """The thoughts, the answer, and whether the thoughts go on: they have no end yet."""
    reader = ThoughtSplit()
    (thoughts, said), (rest, more) = reader.push(text), reader.finish()
    return thoughts + rest, said + more, reader.thinking


class ThoughtSplit:
    """Splits a growing text into thoughts and answer, without the marks and the blank lines around them."""

    def __init__(self, *, thinking: bool = False, begun: bool = False) -> None:
        self.thinking = thinking
        self._begun = thinking or begun  # no mark can come any more that opens
        self._inside = begun  # the part under way has text: its line feeds count
        self._held = ""

    def push(self, text: str) -> tuple[str, str]:
        """What is certain of the thoughts and of the answer by now."""
        text, self._held = self._held + text, ""
        if not self._begun:
            start = text.lstrip()
            if start.startswith(OPENING):
                self._begun = self.thinking = True
                text = start[len(OPENING) :]
            elif OPENING.startswith(start):
                self._held = text
                return "", ""
            else:
                self._begun = self._inside = True
        if not self.thinking:
            return "", self._part(text)
        thoughts, mark, said = text.partition(CLOSING)
        if mark:
            thoughts = self._part(thoughts.rstrip("\n"))
            self.thinking = self._inside = False
            return thoughts, self._part(said)
        certain = len(thoughts) - _begun_at_end(thoughts)
        certain = len(thoughts[:certain].rstrip("\n"))
        self._held = thoughts[certain:]
        return self._part(thoughts[:certain]), ""

    def finish(self) -> tuple[str, str]:
        """The text that was held back, at the end."""
        held, self._held = self._held, ""
        return (self._part(held.rstrip("\n")), "") if self.thinking else ("", held)

    def _part(self, text: str) -> str:
        """Text of the part under way, which does not begin with line feeds."""
        text = text if self._inside else text.lstrip("\n")
        self._inside = self._inside or bool(text)
        return text


class ThoughtWriter:
    """Writes thoughts and answer, as they come, as one text that only grows; `begun` is what is there of it."""

    def __init__(self, begun: str = "") -> None:
        self.thinking = split(begun)[2]
        self._begun = bool(begun)
        self._held = ""  # line feeds at the end of the thoughts so far, perhaps the last
        self._fresh = False  # the answer begins after thoughts, of whatever length

    def thought(self, text: str) -> str:
        """The text that more thoughts add."""
        before = ""
        if not self.thinking:
            text = text.lstrip("\n")
            if not text:
                return ""
            before = f"\n\n{OPENING}\n" if self._begun else f"{OPENING}\n"
            self.thinking = self._begun = True
        text = self._held + text
        kept = text.rstrip("\n")
        self._held = text[len(kept) :]
        return before + kept

    def close(self) -> str:
        """The text that the end of the thoughts adds, if there are any."""
        closing = f"\n{CLOSING}\n\n" if self.thinking else ""
        self.thinking, self._held, self._fresh = False, "", True
        return closing

    def said(self, text: str) -> str:
        """The text that more of the answer adds."""
        before = self.close() if self.thinking else ""
        text = text.lstrip("\n") if self._fresh else text
        if text:
            self._fresh, self._begun = False, True
        return before + text


def _begun_at_end(text: str) -> int:
    """How many characters at the end of the text may be the beginning of the closing mark."""
    return next((size for size in range(len(CLOSING) - 1, 0, -1) if text.endswith(CLOSING[:size])), 0)
