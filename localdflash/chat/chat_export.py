"""Export a chat to one file: as Markdown, in which every open fence and HTML block is closed, or as JSON."""

import json
import os
import re
import secrets
import stat
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localdflash.base.errors import StoreError, UsageError
from localdflash.chat.chat_listing import SessionInfo
from localdflash.chat.messages import FINISH_NOTES, Message, fence
from localdflash.text.sanitize import sanitize

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

SCHEMA = 1
_HTML_BLOCK_ENDS = ("-->", "?>", "]]>", ">", "</pre>", "</script>", "</style>", "</textarea>")
_SPECIAL = re.compile(r"[\\`*_\[\]<>#&~|]")
_SURROGATE = re.compile("[\ud800-\udfff]")  # UTF-8 cannot encode these


def export_markdown(info: SessionInfo, messages: Sequence[Message]) -> str:
    """Return the chat as Markdown. Times are in the local time zone."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark").disable("inline")
    facts = (("Model", info.model), ("Folder", info.folder), ("Begun", _format_time(info.created)))
    parts = [
        f"# {_escape_line(info.title) or 'Chat'}",
        "\n".join(f"- {name}: {_escape_line(fact)}" for name, fact in facts if fact),
    ]
    if info.system:
        parts += ["Instructions:", fence(info.system)]
    for number, message in enumerate(messages, 1):
        parts += ["---", f"<!-- message {number} -->\n{_author_line(number, message)}"]
        parts += [f"Attached: {_escape_line(one.name)}\n\n{fence(one.text)}" for one in message.attachments]
        if message.text:
            parts.append(_close_blocks(parser, message.text))
    return _SURROGATE.sub("\ufffd", "\n\n".join(parts)) + "\n"


def export_json(info: SessionInfo, messages: Sequence[Message]) -> str:
    """Return the chat as JSON."""
    session = {name: getattr(info, name) for name in ("id", "title", "folder", "model", "system", "created", "updated")}
    lines = ",\n".join(_encode_json(_message_fields(message)) for message in messages)
    return (
        f'{{"format": "localdflash-chat", "schema": {SCHEMA},\n"session": {_encode_json(session)},\n'
        f'"messages": [\n{lines}\n]}}\n'
    )


def write_export(path: Path, text: str, *, overwrite: bool = False) -> None:
    """Write a file atomically. UsageError if it exists (unless `overwrite`) or is unsuitable; StoreError on failure."""
    try:
        path = Path(os.path.realpath(path))  # replaces the target of a symbolic link, not the link
        mode = path.stat().st_mode if path.exists() else None
        if mode is not None and not stat.S_ISREG(mode):
            raise UsageError(f"{path}: not a regular file; give another name")
        if mode is not None and not overwrite:
            raise UsageError(f"{path}: exists already; give another name")
        temporary = path.with_name(f".{secrets.token_hex(8)}.part")
        try:
            with temporary.open("xb") as file:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
            if mode is not None:
                temporary.chmod(stat.S_IMODE(mode))
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"{path}: cannot write: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{str(path)!a}: not a valid file name") from error


def _author_line(number: int, message: Message) -> str:
    author = {"user": "You", "assistant": "Assistant", "system": "Instructions"}[message.role]
    facts = (
        _escape_line(str(message.numbers.get("model", ""))),
        _format_time(message.created),
        FINISH_NOTES.get(message.finish, ""),
    )
    return f"**{number}. {author}**" + "".join(f" · {fact}" for fact in facts if fact)


def _close_blocks(parser: "MarkdownIt", text: str) -> str:
    """Return the text; if its last Markdown block is open, add the line that ends the block."""
    fences = re.findall(r"^ {0,3}(`{3,}|~{3,})", text, re.MULTILINE)
    for end in ("", *sorted(set(fences), key=len, reverse=True), *_HTML_BLOCK_ENDS):
        closed = f"{text}\n{end}" if end else text
        last = parser.parse(f"{closed}\n\n---\n")[-1]
        if last.type == "hr" and last.level == 0:
            return closed
    return text


def _escape_line(text: str) -> str:
    """Return one line of plain text, escaped for Markdown."""
    return _SPECIAL.sub(r"\\\g<0>", sanitize(" ".join(text.split())))


def _format_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M")


def _message_fields(message: Message) -> dict[str, Any]:
    fields = {name: getattr(message, name) for name in ("id", "role", "created", "text", "finish")}
    fields["attachments"] = [asdict(one) for one in message.attachments]
    return fields | {"numbers": dict(message.numbers), "steps": [asdict(one) for one in message.steps]}


def _encode_json(value: object) -> str:
    return _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(value, ensure_ascii=False))
