"""Export of a chat as Markdown or JSON, and the prompt text of messages."""

import json
import os
import re
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from localdflash.base.errors import LocaldflashError, StoreError, UsageError
from localdflash.chat.chat_export import export_json, export_markdown, write_export
from localdflash.chat.chat_listing import SessionInfo
from localdflash.chat.messages import Attachment, Message, StepRecord, prompt_text
from tests.chat.test_store import MESSAGES

INFO = SessionInfo(7, "Why?", "/here", "tiny", "", 1_750_000_000.0, 1_750_000_060.0, 2, "Because.")
MARKDOWN = """\
# Why \\*not\\*?

- Model: tiny
- Folder: /here/my\\_project
- Begun: 2025-06-15 15:06

Instructions:

```
Be brief.
```

---

<!-- message 1 -->
**1. You** · 2025-06-15 15:07

Attached: a\\_b.py

````
```
x
````

Why?

---

<!-- message 2 -->
**2. Assistant** · tiny · 2025-06-15 15:08 · stopped

# Because
```python
x = 1\r
    y
```
"""


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_markdown_export() -> None:
    info = SessionInfo(7, "Why *not*?", "/here/my_project", "tiny", "Be brief.", 1_750_000_000.0, 0.0, 2, "")
    question = Message("user", "Why?", (Attachment("file", "a_b.py", "```\nx"),), created=1_750_000_060.0)
    answer = Message(
        "assistant",
        "# Because\n```python\nx = 1\r\n    y\n```",
        finish="cancelled",
        numbers={"model": "tiny", "tau": 3.5},
        steps=(StepRecord("dflash", 15, 2, (1,), 1.0),),
        created=1_750_000_120.0,
    )
    assert export_markdown(info, [question, answer]) == MARKDOWN


def heads(text: str) -> list[str]:
    """Return the mark and the author of each message that CommonMark finds at the top level."""
    blocks = [token for token in MarkdownIt("commonmark").parse(text) if not token.type.endswith(("_open", "_close"))]
    return [
        mark.content.strip() + line.content.partition(" · ")[0]
        for rule, mark, line in zip(blocks, blocks[1:], blocks[2:], strict=False)
        if rule.type == "hr" and mark.type == "html_block" and mark.level == 0 and line.level == 1
    ]


OPEN_ENDS = [
    *("```", "~~~\nx", "````md\n```\nx\n```", "- a\n  ```\n  x", "> ```\n> x", "<!-- x", "<!--\n\n# x", "<pre>\n\nx"),
    *("a\n---", "a\n===", "[a]: /b\n", "[a]:", "    code", "- ", "1.", "|a|b|\n|-|-|", "\\", "`", "# ", "\n\n", "  "),
]


def test_markdown_export_closes_open_blocks() -> None:
    for text in OPEN_ENDS:
        exported = export_markdown(INFO, [Message("assistant", text), Message("user", "and?")])
        assert heads(exported) == ["<!-- message 1 -->**1. Assistant**", "<!-- message 2 -->**2. You**"], text
        assert text in exported


@given(st.lists(MESSAGES.filter(lambda message: not re.search(r"\\ud[89a-f]|\binf\b", repr(message))), max_size=3))
@settings(max_examples=40)
def test_json_export_round_trips(messages: list[Message]) -> None:
    written = json.loads(export_json(INFO, messages))
    assert [read(one) for one in written["messages"]] == messages


def read(one: dict[str, Any]) -> Message:
    attachments = tuple(Attachment(**attachment) for attachment in one.pop("attachments"))
    steps = tuple(StepRecord(**{**step, "sizes": tuple(step["sizes"])}) for step in one.pop("steps"))
    return Message(**one, attachments=attachments, steps=steps)


def test_export_replaces_a_file_only_with_overwrite(tmp_path: Path) -> None:
    file = tmp_path / "chat.md"
    file.write_text("mine")
    file.chmod(0o640)
    with pytest.raises(UsageError, match=r"chat\.md: exists already; give another name$"):
        write_export(file, "x")
    assert file.read_text() == "mine"
    write_export(file, "x", overwrite=True)
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("x", 0o640)
    assert os.listdir(tmp_path) == ["chat.md"]


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("folder", UsageError, "not a regular file"),
        ("absent/chat.md", StoreError, "No such file or directory"),
        ("a\x00b", UsageError, "not a valid file name"),
    ],
)
def test_impossible_export_paths_are_refused(
    tmp_path: Path, name: str, kind: type[LocaldflashError], words: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(kind, match=words) as caught:
        write_export(tmp_path / name, "x", overwrite=True)
    assert len(str(caught.value).splitlines()) == 1
    assert sorted(os.listdir(tmp_path)) == ["file", "folder", "loop", "pipe"]


FULL = """
import resource, sys
from pathlib import Path
from localdflash.chat.chat_export import write_export
from localdflash.base.errors import StoreError
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, -1))
for overwrite in (False, True):
    try:
        write_export(Path(sys.argv[1 + overwrite]), "x" * 20_000, overwrite=overwrite)
    except StoreError as error:
        print(error)
"""


def test_full_disk_keeps_the_old_export(tmp_path: Path) -> None:
    (tmp_path / "old.md").write_text("old")
    arguments = [str(tmp_path / name) for name in ("new.md", "old.md")]
    output = subprocess.run([sys.executable, "-c", FULL, *arguments], capture_output=True, text=True, check=True).stdout
    assert output == "".join(f"{file}: cannot write: File too large\n" for file in arguments)
    assert os.listdir(tmp_path) == ["old.md"]
    assert (tmp_path / "old.md").read_text() == "old"


def test_prompt_text_puts_attachments_first() -> None:
    message = Message("user", "why?", (Attachment("file", "a.py", "x = 1\n"), Attachment("paste", "pasted 1", "log")))
    assert prompt_text(message) == "a.py:\n```\nx = 1\n```\n\npasted 1:\n```\nlog\n```\n\nwhy?"


@given(st.text(alphabet="`~ax\n ", max_size=40))
@example("```\nx\n````")
def test_fence_is_longer_than_any_fence_inside(text: str) -> None:
    tokens = MarkdownIt().parse(prompt_text(Message("user", "", (Attachment("file", "a.md", text),))))
    fences = [token.content for token in tokens if token.type == "fence"]
    assert fences == [text if text.endswith("\n") else f"{text}\n"]
