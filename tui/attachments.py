"""Row above the prompt that lists the attachments of the next message."""

from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
from textual.content import Content
from textual.widget import Widget

from localdflash.chat.attachable_files import format_size
from localdflash.chat.messages import Attachment
from localdflash.text.sanitize import printable, sanitize


class Attachments(Widget):
    """One-line list of attachment names and sizes, hidden while empty. Names that do not fit are counted."""

    DEFAULT_CSS = """
    Attachments {
        display: none;
        height: 1;
        width: 1fr;
        padding: 0 1;
        color: $foreground;
    }
    """

    def __init__(self) -> None:
        super().__init__()
        self._items: tuple[Attachment, ...] = ()

    @property
    def items(self) -> tuple[Attachment, ...]:
        """Return the attachments, in order."""
        return self._items

    @items.setter
    def items(self, items: Sequence[Attachment]) -> None:
        self._items = tuple(items)
        self.display = bool(items)
        self.refresh()

    def add(self, attachment: Attachment) -> None:
        """Add an attachment; it replaces one of the same name."""
        others = (one for one in self._items if one.name != attachment.name)
        self.items = (*others, attachment)

    def render(self) -> Content:
        """Return as many names as fit, and the number of the others."""
        width = self.size.width
        chips = [f" {label(one)} " for one in self._items]
        shown, used = list[str](), 0
        for number, chip in enumerate(chips):
            more = len(chips) - number - 1
            reserved = cell_len(_more(more)) if more else 0
            if used + cell_len(chip) + reserved > width:
                break
            shown.append(chip)
            used += cell_len(chip) + 1
        if not shown and chips:
            shown = [f"{set_cell_size(chips[0], max(width - 1 - len(_more(len(chips) - 1)), 1))}…"]
        rest = len(chips) - len(shown)
        parts = [Content.styled(chip, "$foreground on $panel") for chip in shown]
        if rest:
            parts.append(Content.styled(_more(rest).strip(), "$text-muted"))
        return Content(" ").join(parts)


def label(attachment: Attachment) -> str:
    """Format an attachment, such as `pasted 1: 120 lines` or `box.py 1.2 KB`."""
    text, name = attachment.text, printable(sanitize(attachment.name))
    lines = text.count("\n") + (not text.endswith("\n"))
    if attachment.kind != "paste":
        return f"{name} {format_size(len(text.encode('utf-8', 'replace')))}"
    return f"{name}: {lines:,} lines" if lines > 1 else f"{name}: {len(text):,} characters"


def _more(count: int) -> str:
    return f" +{count} more" if count else ""
