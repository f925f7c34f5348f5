from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from localdflash.chat.messages import Attachment, Message, prompt_text


def test_what_is_attached_comes_first_under_its_name() -> None:
    message = Message("user", "why?", (Attachment("file", "a.py", "x = 1\n"), Attachment("paste", "pasted 1", "log")))
    assert prompt_text(message) == "a.py:\n```\nx = 1\n```\n\npasted 1:\n```\nlog\n```\n\nwhy?"


@given(st.text(alphabet="`~ax\n ", max_size=40))
@example("```\nx\n````")
def test_no_text_ends_its_fence(text: str) -> None:
    """CommonMark reads the attachment back, whatever fences it has."""
    tokens = MarkdownIt().parse(prompt_text(Message("user", "", (Attachment("file", "a.md", text),))))
    fences = [token.content for token in tokens if token.type == "fence"]
    assert fences == [text if text.endswith("\n") else f"{text}\n"]
