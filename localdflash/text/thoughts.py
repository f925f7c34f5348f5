r"""Thoughts and answer as one text, `<think>\n...\n</think>\n\n...`: the form in which both are shown and stored."""

OPENING, CLOSING = "<think>", "</think>"


def join_thoughts(thoughts: str, answer: str) -> str:
    """Join thoughts and answer to one text; without thoughts it is the answer."""
    return f"{OPENING}\n{thoughts}\n{CLOSING}\n\n{answer}" if thoughts else answer


def split_thoughts(text: str) -> tuple[str, str, bool]:
    """Return the thoughts, the answer, and whether the thoughts are unfinished."""
    reader = ThoughtSplit()
    (thoughts, answer), (last_thoughts, flushed) = reader.push(text), reader.finish()
    return thoughts + last_thoughts, answer + flushed, reader.thinking


class ThoughtSplit:
    """Incremental splitter. `thinking`: the text continues thoughts; `begun`: it continues a non-empty part."""

    def __init__(self, *, thinking: bool = False, begun: bool = False) -> None:
        self.thinking = thinking
        self._begun = thinking or begun  # whether a part has begun, so that no opening marker can follow
        self._inside = begun  # whether the current part has text, so that its line feeds count
        self._held = ""

    def push(self, text: str) -> tuple[str, str]:
        """Return the thoughts and the answer that are now final, without markers and the line feeds around them."""
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
            return "", self._strip_first_breaks(text)
        thoughts, mark, answer = text.partition(CLOSING)
        if mark:
            thoughts = self._strip_first_breaks(thoughts.rstrip("\n"))
            self.thinking = self._inside = False
            return thoughts, self._strip_first_breaks(answer)
        certain = len(thoughts) - overlap_at_end(thoughts, CLOSING)
        certain = len(thoughts[:certain].rstrip("\n"))
        self._held = thoughts[certain:]
        return self._strip_first_breaks(thoughts[:certain]), ""

    def finish(self) -> tuple[str, str]:
        """Return the held-back thoughts and answer; call at the end of the text."""
        held, self._held = self._held, ""
        return (self._strip_first_breaks(held.rstrip("\n")), "") if self.thinking else ("", held)

    def _strip_first_breaks(self, text: str) -> str:
        """Return text of the current part without leading line feeds."""
        text = text if self._inside else text.lstrip("\n")
        self._inside = self._inside or bool(text)
        return text


class ThoughtWriter:
    """Incremental writer of thoughts and answer as one text; `begun` is that text so far."""

    def __init__(self, begun: str = "") -> None:
        self.thinking = split_thoughts(begun)[2]
        self._begun = bool(begun)
        self._held = ""  # line feeds at the end of the thoughts so far
        self._is_after_thoughts = False  # whether the thoughts have ended and the answer has no text yet

    def add_thought(self, text: str) -> str:
        """Add thoughts; return the new text."""
        before = ""
        if not self.thinking:
            text = text.lstrip("\n")
            if not text:
                return ""
            before = f"\n\n{OPENING}\n" if self._begun else f"{OPENING}\n"
            self.thinking = self._begun = True
        text = self._held + text
        certain = text.rstrip("\n")
        self._held = text[len(certain) :]
        return before + certain

    def close(self) -> str:
        """End the thoughts, if there are any; return the new text."""
        closing = f"\n{CLOSING}\n\n" if self.thinking else ""
        self.thinking, self._held, self._is_after_thoughts = False, "", True
        return closing

    def add_answer(self, text: str) -> str:
        """Add text of the answer; return the new text."""
        before = self.close() if self.thinking else ""
        text = text.lstrip("\n") if self._is_after_thoughts else text
        if text:
            self._is_after_thoughts, self._begun = False, True
        return before + text


def overlap_at_end(text: str, mark: str) -> int:
    """Return how many characters at the end of the text may begin the mark; a complete mark is not counted."""
    return next((size for size in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:size])), 0)
