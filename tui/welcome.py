"""Welcome text of an empty chat: a description, three questions to try, and keys; more lines on the first run."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from localdflash.text.sanitize import printable

_EMBEDDED = "embedded"
TITLE = Content.assemble(("localdflash", "bold $primary"), ", a coding assistant")
DESCRIPTION = "A small drafter proposes tokens, the model verifies several at once: same text, sooner."
_LARGER = ("Larger", "localdflash models list names others; /model shows which fit.")
_SPEED_HINT = ("Look", "F2 shows each token's source, F3 and F5 the speed; F1 lists all.")
_FIRST = ("Leaving", "Ctrl+D. Esc stops an answer. Chats are kept here, unless --no-log.")
_LATER = ("Chats", "Ctrl+O opens an earlier one; Ctrl+D leaves.")


def example_questions(file: str = "") -> tuple[str, str, str]:
    """Return three example questions; `file` is a mention of a file in this folder."""
    return (
        "Write a Python function that counts the words of a file.",
        f"Explain {file}" if file else "Explain what zip(*rows) does in Python.",
        "Write a test for a function that reverses a string.",
    )


class ExampleQuestion(Static):
    """Example question; a click inserts it into the prompt."""

    @dataclass
    class Clicked(Message):
        """Posted when the example question is clicked."""

        text: str

    def __init__(self) -> None:
        super().__init__(markup=False)
        self.text = ""

    def set_text(self, text: str) -> None:
        """Set the text of the question."""
        self.text = text
        self.update(text)

    def on_click(self, event: events.Click) -> None:
        """Post the click."""
        event.stop()
        self.post_message(self.Clicked(self.text))


class Welcome(Vertical):
    """Welcome text of an empty chat. `server` is the URL of a remote server, or ""."""

    DEFAULT_CSS = """
    Welcome {
        height: auto; padding: 1 2 0 2; color: $text-muted;
        Static { height: auto; }
        Horizontal { height: auto; }
        .label { width: 10; text-style: bold; }
        .words { width: 1fr; height: auto; }
        #title { color: $foreground; }
        #description { margin-bottom: 1; }
        #try .label { color: $primary; }
        ExampleQuestion { color: $foreground; }
        ExampleQuestion:hover { background: $panel; }
        #about { height: auto; margin-top: 1; }
    }
    .-low Welcome { padding: 0 1; .label { width: 5; } #description, #about { display: none; } }
    """
    SCOPED_CSS: ClassVar[bool] = False

    def __init__(self, first_run: bool, model: str = _EMBEDDED, server: str = "") -> None:
        super().__init__(id="welcome")
        self._lines = (*_model_lines(model, server), _SPEED_HINT, _FIRST) if first_run else (_SPEED_HINT, _LATER)
        self.examples = [ExampleQuestion() for _ in range(3)]

    def compose(self) -> ComposeResult:
        """Create the widgets."""
        yield Static(TITLE, id="title", markup=False)
        yield Static(DESCRIPTION, id="description", markup=False)
        with Horizontal(id="try"):
            yield Static("Try", classes="label")
            with Vertical(classes="words"):
                yield from self.examples
        with Vertical(id="about"):
            for name, text in self._lines:
                with Horizontal():
                    yield Static(name, classes="label", markup=False)
                    yield Static(text, classes="words", markup=False)

    def on_mount(self) -> None:
        """Show the example questions that need no file."""
        self.show_examples(example_questions())

    def show_examples(self, texts: Iterable[str]) -> None:
        """Show these example questions."""
        for example, text in zip(self.examples, texts, strict=True):
            example.set_text(text)


def _model_lines(model: str, server: str) -> tuple[tuple[str, str], ...]:
    """Return the lines about the model in use; only a local model is called local."""
    questions = ("Good for", "Questions about code. Answers can be wrong: read them before you use them.")
    functions = ("Good for", "Short Python functions. It knows little else, and is often wrong.")
    if server:
        notice = f"The server at {printable(server)} answers: what you send goes there."
        return ("Here", notice), questions, ("Models", "/model ID requests another model of the server.")
    name = "A small model" if model == _EMBEDDED else printable(model)
    notice = f"{name} runs on this machine; nothing you type leaves it."
    return ("Here", notice), functions if model == _EMBEDDED else questions, _LARGER
