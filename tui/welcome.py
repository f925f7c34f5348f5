"""What an empty chat shows: at the first run what is running and what to expect of it, later two lines."""

from textual.content import Content
from textual.widgets import Static

from localdflash.text.sanitize import printable

_EMBEDDED = "embedded"
_LARGER = ("Larger", "localdflash models list names others; /model shows which fit.")
_KEYS = (
    ("Help", "F1: all commands and keys. / begins a command, @ adds a file."),
    ("Leaving", "Ctrl+Q. Esc stops an answer. Chats are kept here, unless --no-log."),
)
_LATER = (
    ("Help", "F1 lists commands and keys; / begins a command, @ adds a file."),
    ("Chats", "Ctrl+O opens an earlier one; Ctrl+Q leaves."),
)


class Welcome(Static):
    """The lines; the app hides them once there is a message. `server` is the URL of another server in use, or ""."""

    DEFAULT_CSS = "Welcome { height: auto; padding: 1 2; color: $text-muted; }"

    def __init__(self, *, first_run: bool, model: str = _EMBEDDED, server: str = "") -> None:
        lines = (*_what_runs(model, server), *_KEYS) if first_run else _LATER
        rows = [Content.assemble((f"{name:<8}", "bold $foreground"), "  ", text) for name, text in lines]
        super().__init__(Content("\n").join(rows), id="welcome", markup=False)


def _what_runs(model: str, server: str) -> tuple[tuple[str, str], ...]:
    """Where answers come from and what to expect of them; it says "local" only if that is true."""
    if server:
        return (
            ("Here", f"The server at {printable(server)} answers: what you send goes there."),
            ("Good for", "Questions about code. Answers can be wrong: read them before you use them."),
            ("Models", "/model ID asks for another one of the server's."),
        )
    if model != _EMBEDDED:
        return (
            ("Here", f"{printable(model)} runs on this machine; nothing you type leaves it."),
            ("Good for", "Questions about code. Answers can be wrong: read them before you use them."),
            _LARGER,
        )
    return (
        ("Here", "A small model runs on this machine; nothing you type leaves it."),
        ("Good for", "Short Python functions. It knows little else, and is often wrong."),
        _LARGER,
    )
