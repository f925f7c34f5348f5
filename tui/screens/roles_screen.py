"""Choose named instructions, and read them first. The result is the name, or `none` for no instructions."""

from collections.abc import Iterable, Mapping
from typing import ClassVar

from textual import on
from textual.containers import VerticalScroll
from textual.widget import Widget
from textual.widgets import OptionList, Static

from localdflash.text.sanitize import sanitize
from localdflash.tui.screens.dialog import ChoiceList, Dialog, two_rows

NONE = "none"


class RolePicker(Dialog[str]):
    """Dialog that lists the roles and previews the highlighted one."""

    DEFAULT_CSS: ClassVar[str] = """
    RolePicker {
        ChoiceList, ChoiceList:focus { height: auto; max-height: 14; margin: 1 0; }
        #preview { height: auto; max-height: 12; border-top: solid $border-blurred; }
        &.-low { ChoiceList { margin: 0; height: 1fr; } #preview { display: none; } }
    }
    """

    def __init__(self, roles: Mapping[str, str]) -> None:
        super().__init__("Roles", "Enter chooses   Tab scrolls the text   Esc closes")
        self._roles = {NONE: "No instructions before the chat.", **roles}

    def body(self) -> Iterable[Widget]:
        """Yield the list and the text."""
        yield ChoiceList()
        with VerticalScroll(id="preview"):
            yield Static(id="text", markup=False)

    def on_mount(self) -> None:
        """Show the roles."""
        choices = self.query_one(ChoiceList)
        choices.add_options(two_rows(name, text.strip().partition("\n")[0]) for name, text in self._roles.items())
        choices.highlighted = 0
        choices.focus()

    @on(OptionList.OptionHighlighted)
    def _preview(self, event: OptionList.OptionHighlighted) -> None:
        self.query_one("#text", Static).update(sanitize(self._roles[self._role_at(event.option_index)]))

    @on(OptionList.OptionSelected)
    def _submit_option(self, event: OptionList.OptionSelected) -> None:
        event.stop()
        self.dismiss(self._role_at(event.option_index))

    def _role_at(self, index: int) -> str:
        return list(self._roles)[index]
