"""Base class of the multi-line fields, with an undo and a redo that are safe for long texts."""

from textual.widgets import TextArea


class UndoableArea(TextArea):
    """Text area that moves the cursor to the start before an undo or a redo.

    Textual updates the scrollbar before it restores the cursor, and raises ValueError if the cursor is past the end.
    """

    def undo(self) -> None:
        """Undo the last edits."""
        if self.history.undo_stack:
            self.move_cursor((0, 0))
            super().undo()

    def redo(self) -> None:
        """Redo the edits that were undone last."""
        if self.history.redo_stack:
            self.move_cursor((0, 0))
            super().redo()
