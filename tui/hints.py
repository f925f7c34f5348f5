"""The keys of the moment, as the frame of the prompt names them."""

from collections.abc import Sequence

from textual.content import Content

SEPARATOR = " · "
ASK = "Ask something"
IN_MESSAGES = ("c copies", "1-9 a code block", "e edits", "r answers again", "f forks", "Tab to the prompt")
EDITING = ("Enter asks again", "Esc leaves the chat as it was")
ANSWERING = ("Esc stops", "Enter sends afterwards")
OUTSIDE = ("Enter runs it, if you agree",)
TYPING = ("Enter sends", "Ctrl+J new line", "F7 editor")
FIRST = "Tab something to try"
EMPTY = ("F1 help", "/ commands", "@ files", "! a command's output", "Ctrl+D leaves")


def fitting(keys: Sequence[str], width: int) -> Content:
    """As many of these as fit into so many cells, the first ones first; the key stands out from what it does."""
    shown = Content("")
    for hint in keys:
        key, blank, does = hint.partition(" ")
        more = Content.assemble(SEPARATOR if shown else "", (key, "bold $foreground"), blank + does)
        if shown.cell_length + more.cell_length > width:
            break
        shown += more
    return shown
