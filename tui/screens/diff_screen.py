"""Dialog with the changes that an answer proposes: the files to choose from, and the diff of one of them."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from rich.cells import cell_len
from rich.segment import Segment
from textual import on
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.events import Resize
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget
from textual.widgets import OptionList, Static

from localdflash.base.errors import LocaldflashError
from localdflash.text.sanitize import sanitize
from localdflash.tui.screens.dialog import ChoiceList, Dialog, one_line

if TYPE_CHECKING:
    from localdflash.chat.applying import ApplyResult
    from localdflash.chat.file_text import ShownHunk
    from localdflash.chat.proposals import FileProposal

Apply = Callable[[Sequence["FileProposal"]], "ApplyResult"]  # called in a thread
_KINDS = {"change": "", "new": "new, ", "delete": "deleted, "}
_KEYS = "Enter writes   Space chooses   N P files   Esc closes"
MAX_LINE_CHARS = 4_000
_TAB = 4
_SCROLL_CELLS = 8
_MIN_TWO_NUMBERS_CELLS = 60  # a narrower view shows one line number per row
_STYLES = {"+": "added", "-": "removed", "@": "place", "\\": "remark", " ": "same"}  # first character of a row -> style


class _Row(NamedTuple):
    """Row of a diff. `old` and `new` are line numbers from 1, 0 for none; `sign` is a key of `_STYLES`."""

    old: int
    new: int
    sign: str
    text: str


class DiffView(ScrollView):
    """Scrollable view of a file's hunks; line numbers and signs stay when long lines scroll to the right."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {f"diff-view--{look}" for look in (*_STYLES.values(), "number")}
    DEFAULT_CSS = """
    DiffView {
        height: 1fr; scrollbar-size-horizontal: 1; scrollbar-size-vertical: 1;
        .diff-view--added { color: $success; background: $success 12%; }
        .diff-view--removed { color: $error; background: $error 12%; }
        .diff-view--same { color: $foreground; }
        .diff-view--number { color: $text-muted; }
        .diff-view--place, .diff-view--remark { color: $text-muted; text-style: italic; }
        &:ansi .diff-view--added, &:ansi .diff-view--removed { background: transparent; }
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self._rows: list[_Row] = []
        self._digits, self._widest = 1, 0

    def show(self, hunks: Sequence["ShownHunk"]) -> None:
        """Show another file, from its first row on."""
        self._rows = [row for hunk in hunks for row in _rows(hunk)]
        self._digits = len(str(max((max(row.old, row.new) for row in self._rows), default=0)))
        self._widest = max((cell_len(clean_line(row.text)) for row in self._rows), default=0)
        self._arrange()
        self.scroll_to(0, 0, animate=False, force=True)
        self.refresh()

    def action_scroll_left(self) -> None:
        """Scroll to the left by several columns."""
        self.scroll_relative(x=-_SCROLL_CELLS, animate=False)

    def action_scroll_right(self) -> None:
        """Scroll to the right by several columns."""
        self.scroll_relative(x=_SCROLL_CELLS, animate=False)

    @on(Resize)
    def _arrange(self) -> None:
        self.virtual_size = Size(self._gutter + self._widest, len(self._rows))

    @property
    def _gutter(self) -> int:
        """Return the cells of numbers and sign."""
        return self._digits + 3 if self.size.width < _MIN_TWO_NUMBERS_CELLS else 2 * self._digits + 4

    def render_line(self, y: int) -> Strip:
        """Return one row of the screen."""
        left, top = self.scroll_offset
        width = self.scrollable_content_region.width
        if top + y >= len(self._rows):
            return Strip.blank(width, self.rich_style)
        row = self._rows[top + y]
        style = self.get_component_rich_style(f"diff-view--{_STYLES[row.sign]}")
        number = self.get_component_rich_style("diff-view--number")
        sign = row.sign if row.sign in "+-" else " "
        gutter = [Segment(self._numbers(row), number), Segment(f"{sign} ", style)]
        line = Strip([Segment(clean_line(row.text), style)]).crop(left, left + max(width - self._gutter, 0))
        return Strip([*gutter, *line]).adjust_cell_length(width, style)

    def _numbers(self, row: _Row) -> str:
        old, new = (str(number) if number else "" for number in (row.old, row.new))
        if self.size.width < _MIN_TWO_NUMBERS_CELLS:
            return f"{new or old:>{self._digits}} "
        return f"{old:>{self._digits}} {new:>{self._digits}} "


def clean_line(text: str) -> str:
    """Make a line safe to show: no control characters, tabs as blanks, cut if very long."""
    rest = len(text) - MAX_LINE_CHARS
    if rest > 0:
        text = f"{text[:MAX_LINE_CHARS]} … {rest} more characters"
    if text.isascii() and text.isprintable():
        return text
    return sanitize(text.replace("\r", "\u240d").expandtabs(_TAB))


def _rows(hunk: "ShownHunk") -> Iterator[_Row]:
    old, new = hunk.old, hunk.new
    removed = sum(line[0] in " -" for line in hunk.lines)
    added = sum(line[0] in " +" for line in hunk.lines)
    yield _Row(0, 0, "@", f"@@ -{old},{removed} +{new},{added} @@")
    for line in hunk.lines:
        sign = line[0]
        yield _Row(old if sign in " -" else 0, new if sign in " +" else 0, sign, line[1:])
        old += sign in " -"
        new += sign in " +"


class FileList(ChoiceList, inherit_bindings=False):
    """List of changed files; Enter is not bound here, because the dialog uses it to write the files."""

    BINDINGS: ClassVar[list[BindingType]] = [
        binding for binding in Binding.make_bindings(OptionList.BINDINGS) if binding.key != "enter"
    ]


class DiffScreen(Dialog[list["FileProposal"]]):
    """Dialog that shows an answer's changes and writes the chosen ones. The result is the written changes, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,a", "apply", show=False),
        Binding("space", "choose", show=False),
        Binding("n", "move(1)", show=False),
        Binding("p", "move(-1)", show=False),
    ]
    DEFAULT_CSS = """
    DiffScreen {
        #box { width: 96%; max-width: 100%; height: 94%; max-height: 94%; }
        FileList, FileList:focus { height: auto; max-height: 30%; margin: 0 0 1 0; }
        #note { height: auto; max-height: 40%; display: none; }
        #note.-shown { display: block; }
        &.-low { FileList, FileList:focus { max-height: 2; margin: 0; } }
    }
    """

    def __init__(self, proposals: Sequence["FileProposal"], apply: Apply) -> None:
        files = "1 file" if len(proposals) == 1 else f"{len(proposals)} files"
        super().__init__(f"Changes to {files}", _KEYS)
        self._proposals, self._apply = proposals, apply
        self._chosen = {at for at, one in enumerate(proposals) if not one.problem and one.kind != "delete"}
        self._written: dict[int, FileProposal] = {}
        self._writing = False

    def body(self) -> Iterable[Widget]:
        """Yield the list, a line of explanation, the diff."""
        yield FileList()
        yield Static(id="note", markup=False)
        yield DiffView()

    def on_mount(self) -> None:
        """Focus the diff if there is nothing to choose."""
        files = self._files
        files.show(self._row(at) for at in range(len(self._proposals)))
        (files if len(self._proposals) > 1 else self.query_one(DiffView)).focus()

    @property
    def _files(self) -> FileList:
        return self.query_one(FileList)

    @property
    def _current(self) -> int:
        return self._files.highlighted or 0

    def _row(self, at: int) -> Content:
        one = self._proposals[at]
        mark = "✗" if one.problem else "●" if at in self._written else "✓" if at in self._chosen else "○"
        lines = [line[0] for hunk in one.hunks for line in hunk.lines]
        detail = one.problem or f"{_KINDS[one.kind]}+{lines.count('+')} -{lines.count('-')}"
        written = "written, " if at in self._written else ""
        return Content.assemble(f"{mark} {one_line(one.path)}  ", (f"{written}{one_line(detail)}", "$text-muted"))

    @on(OptionList.OptionHighlighted)
    def _show(self) -> None:
        """Show the file that is highlighted now, even if the event was sent for another file."""
        self.query_one(DiffView).show(self._proposals[self._current].hunks)
        self._explain()

    def _explain(self) -> None:
        """Show a note about the file if its diff alone does not explain it."""
        one = self._proposals[self._current]
        if one.problem:
            self._say(f"{one.path} {one.problem}. It is not changed.")
        elif one.kind == "delete" and self._current not in self._chosen:
            self._say("The file would be deleted. It is not chosen: Space chooses it.")
        else:
            self._say("" if one.hunks else "The file has no lines.")

    def _say(self, line: str) -> None:
        note = self.query_one("#note", Static)
        note.update(one_line(line))
        note.set_class(bool(line), "-shown")

    def action_move(self, files: int) -> None:
        """Highlight another file, wherever the focus is."""
        self._files.move(files)

    def action_choose(self) -> None:
        """Toggle whether the file is chosen."""
        at = self._current
        if self._writing or self._proposals[at].problem or at in self._written:
            return
        self._chosen ^= {at}
        self._files.replace_option_prompt_at_index(at, self._row(at))
        self._explain()

    def action_apply(self) -> None:
        """Write the chosen files."""
        chosen = sorted(self._chosen - self._written.keys())
        if self._writing:
            return
        if not chosen:
            can_choose = any(not one.problem for one in self._proposals)
            self._say("Nothing is chosen." if can_choose else "None of the changes can be applied.")
            return
        self._writing = True
        self.run_worker(self._write(chosen))

    async def _write(self, chosen: Sequence[int]) -> None:
        try:
            outcome = await asyncio.to_thread(self._apply, [self._proposals[at] for at in chosen])
        except LocaldflashError as error:
            self._say(str(error))
            return
        finally:
            self._writing = False
        self._written |= {at: self._proposals[at] for at in chosen if self._proposals[at] in outcome.written}
        if not outcome.problem:
            self.dismiss(list(self._written.values()))
            return
        for at in chosen:
            self._files.replace_option_prompt_at_index(at, self._row(at))
        self._say(f"{outcome.problem}. {len(outcome.written)} of {len(chosen)} files were written.")

    def action_close(self) -> None:
        """Close the dialog, unless it is writing."""
        if not self._writing:
            self.dismiss(list(self._written.values()) or None)
