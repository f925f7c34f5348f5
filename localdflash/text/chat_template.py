"""Turn a conversation into the prompt that the model was trained on, by the chat template in its file.

The template comes with the model, so it runs in a sandbox with limits (`template_sandbox`). The messages come from
users, files and tools, so nothing in them may become a marker. What is guaranteed, whatever template and messages do:

- A character of a message, and anything the template derives from one, is encoded as plain text. A message that spells
  `<|im_end|>` gives the letters of it, never the token; neither does one that supplies half of a marker to a template
  that has the other half.
- A template may look at messages and cut them (`"</think>" in content`, `split`, `trim`, `length`, slices): it sees
  the text as it is. If it transforms text after joining it with its own, the text may come out less trimmed than
  elsewhere, but it stays plain text (see `user_text`).
- Ordinary messages give the ids that tokenising the whole rendered prompt at once would give.

What a model thought before an earlier answer is part of that answer's content, as `thoughts` writes it. A template that
has a field for it gets it there, and decides whether the model reads it again.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from types import CodeType
from typing import Any, Literal, NoReturn, get_args

from jinja2 import TemplateError

from localdflash.base.errors import LocaldflashError, ModelError, UsageError
from localdflash.text.sanitize import sanitize
from localdflash.text.template_sandbox import RenderBudget, Sandbox
from localdflash.text.thoughts import split
from localdflash.text.tokenizer import Tokenizer
from localdflash.text.user_text import Disguise, PromptStretch

Role = Literal["system", "user", "assistant", "tool"]
_THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking")
_HAS_FIELD = re.compile(rf"""[.'"]({"|".join(_THOUGHT_FIELDS)})\b""")


@dataclass(frozen=True)
class TemplateMessage:
    """One turn of a conversation. `calls` are those of an answer; a result of one has its id and the tool's name."""

    role: Role
    content: str
    calls: tuple["CalledTool", ...] = ()
    call_id: str = ""
    name: str = ""


@dataclass(frozen=True)
class CalledTool:
    """A call of a tool: its arguments are an object, or text that is none."""

    id: str
    name: str
    arguments: object


@dataclass(frozen=True)
class Limits:
    """What a template may cost: characters of its source, characters it makes, seconds it runs."""

    source: int = 64_000
    characters: int = 64_000_000
    seconds: float = 5.0


def encode_chat(
    tokenizer: Tokenizer,
    template: str,
    messages: Sequence[TemplateMessage],
    *,
    variables: Mapping[str, str | bool] | None = None,
) -> list[int]:
    """The ids of a conversation, with BOS if the model wants one.

    `variables` are the template's own switches, such as `enable_thinking`. Errors are those of `render`.
    """
    known = {**tokenizer.template_tokens(), **(variables or {})}
    return encode_prompt(tokenizer, render(template, messages, variables=known))


def encode_prompt(tokenizer: Tokenizer, prompt: Sequence[PromptStretch]) -> list[int]:
    """The ids of a rendered prompt, with BOS if the model wants one."""
    ids: list[int] = []
    text = ""
    for piece in prompt:
        for part in [piece.text] if piece.from_user else tokenizer.split_markers(piece.text):
            if isinstance(part, str):
                text += part
            else:
                ids += [*tokenizer.encode(text), part]
                text = ""
    ids += tokenizer.encode(text)
    bos = tokenizer.bos()
    return ids if bos is None or ids[:1] == [bos] else [bos, *ids]


def encode_answer(tokenizer: Tokenizer, begun: Sequence[PromptStretch]) -> list[int]:
    """The ids of an answer that was begun, to follow those of a prompt.

    In what the model wrote, which counts as a user's text, markers that have a text are restored, such as `<think>`; a
    control token, which would end the turn, has none and cannot come out of a text that spells it.
    """
    ids: list[int] = []
    plain = ""
    for piece in begun:
        for part in _written(tokenizer, piece.text) if piece.from_user else tokenizer.split_markers(piece.text):
            if isinstance(part, str):
                plain += part
            else:
                ids += [*tokenizer.encode(plain, continues=True), part]
                plain = ""
    return ids + tokenizer.encode(plain, continues=True)


def _written(tokenizer: Tokenizer, text: str) -> list[str | int]:
    """Text of a model cut at its markers that have a text; whole, where a marker would swallow the blanks around it."""
    parts: list[str | int] = [
        part if isinstance(part, str) or tokenizer.piece(part) else _spelling(tokenizer, part)
        for part in tokenizer.split_markers(text)
    ]
    exact = "".join(part if isinstance(part, str) else _spelling(tokenizer, part) for part in parts) == text
    return parts if exact else [text]


def _spelling(tokenizer: Tokenizer, token: int) -> str:
    return tokenizer.piece(token, special=True).decode("utf-8", "replace")


def render(
    template: str,
    messages: Sequence[TemplateMessage],
    *,
    add_generation_prompt: bool = True,
    variables: Mapping[str, str | bool] | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
    limits: Limits | None = None,
) -> list[PromptStretch]:
    """The rendered prompt in pieces that say whether a user wrote them, as whoever describes `tools` is one, too.

    UsageError for an empty conversation or an unknown role; ModelError for a template that is broken, refuses the
    conversation, reaches outside of the sandbox or exceeds the limits.
    """
    limits = limits or Limits()
    _check(messages)
    disguise = Disguise()
    try:
        conversation = [_fields(message, template, disguise) for message in messages]
        code = _compile(template, limits)
        sandbox = Sandbox(RenderBudget(limits.characters, limits.seconds), disguise)
        sandbox.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        return disguise.pieces(
            sandbox.load(code).render(
                {"tools": disguise.hide_all(tools) if tools else None, "documents": None},
                **(variables or {}),
                messages=conversation,
                add_generation_prompt=add_generation_prompt,
            )
        )
    except LocaldflashError:
        raise
    except Exception as error:  # a template can make Python raise anything
        reason = disguise.reveal(str(error)) or type(error).__name__
        raise ModelError(f"chat template: {_one_line(reason)}; use another template or model") from None


@lru_cache(maxsize=8)
def _compile(template: str, limits: Limits) -> CodeType:
    if len(template) > limits.source:
        raise ModelError(f"chat template: {len(template)} characters; at most {limits.source} are read")
    return Sandbox(RenderBudget(limits.characters, limits.seconds), Disguise()).compile_template(template)


def _fields(message: TemplateMessage, template: str, disguise: Disguise) -> dict[str, object]:
    """A message as this template takes it."""
    thoughts, said, _ = split(message.content) if message.role == "assistant" else ("", message.content, False)
    has_field = _HAS_FIELD.search(template)
    if not has_field:
        thoughts, said = "", message.content
    if message.calls and has_field and has_field[1] != "reasoning_content":  # gpt-oss, Gemma: one text before a call
        thoughts, said = "\n\n".join(filter(None, (thoughts, said))), ""
    fields: dict[str, object] = {"content": said}
    if thoughts:
        fields |= dict.fromkeys(_THOUGHT_FIELDS, thoughts)
    if message.calls:
        fields["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.calls
        ]
    fields |= {"tool_call_id": message.call_id} if message.call_id else {}
    fields |= {"name": message.name} if message.name else {}
    return {"role": message.role, **{name: disguise.hide_all(value) for name, value in fields.items()}}


def _check(messages: Sequence[TemplateMessage]) -> None:
    if not messages:
        raise UsageError("chat: no messages; send at least one")
    for message in messages:
        if message.role not in get_args(Role):
            raise UsageError(
                f"chat: unknown role {_one_line(str(message.role))!r}; use one of {', '.join(get_args(Role))}"
            )


def _raise_exception(message: object = "the template refuses this conversation") -> NoReturn:
    raise TemplateError(str(message))


def _strftime_now(form: object) -> str:
    return datetime.now().strftime(str(form)[:100])


def _one_line(text: str) -> str:
    return sanitize(" ".join(text.split()))[:200]
