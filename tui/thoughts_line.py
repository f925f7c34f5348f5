"""What a model thought before its answer, folded into one line."""

from collections.abc import Sequence

from rich.cells import cell_len

from localdflash.tui.block_layout import NARROWEST, Block, Verbatim, behind
from localdflash.tui.inline import clean
from localdflash.tui.lines import Line, StyledRun
from localdflash.tui.wrap import wrap

_BAR = StyledRun("│ ", "muted")


class Thoughts(Block):
    """The thoughts; `ended` says that no more come. Until then the folded line shows the newest of them."""

    _grows = True

    def __init__(self) -> None:
        self.ended = False
        self.unfolded = False
        self._text = ""
        self._verbatim = Verbatim("muted")

    def become(self, text: str) -> None:
        """Replace the text by all of what was thought so far."""
        text = text.lstrip("\r\n")
        if not text.startswith(self._text):
            self._text, self._verbatim = "", Verbatim("muted")
        self._verbatim.append(text[len(self._text) :])
        self._text = text

    def _layout(self, width: int) -> Sequence[Line]:
        text = self._text.rstrip()
        if self.ended and not text:
            return []
        if not self.unfolded:
            return [self._folded(text, width)]
        head = wrap([StyledRun(f"▾ {self._title(text)}", "muted")], width)
        inner = width - 2 if width - 2 >= NARROWEST else width
        rows = list(self._verbatim.lines(inner))
        while rows and not rows[-1].text.strip():
            rows.pop()
        return [
            *(Line(line.runs, len(line.runs), line.joined) for line in head),
            *(rows if inner == width else [behind(_BAR, line) for line in rows]),
        ]

    def _title(self, text: str) -> str:
        if not self.ended:
            return "Thinking…"
        count = len(text.split())
        return f"Thought for {count} word{'' if count == 1 else 's'}"

    def _folded(self, text: str, width: int) -> Line:
        title = f"▸ {self._title(text)}"
        if cell_len(title) > width:
            return Line((StyledRun(wrap([StyledRun(title)], width, words=False)[0].text, "muted"),), 1)
        last = "" if self.ended else clean(text[text.rfind("\n") + 1 :][-width:]).strip()
        while last and cell_len(title) + 1 + cell_len(last) > width:
            last = last[1:]
        return Line((StyledRun(f"{title} {last}".rstrip(), "muted"),), 1)
