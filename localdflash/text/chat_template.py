"""Render a conversation with the model's chat template in a sandbox, and encode the prompt.

- Message text, and text that the template derives from it, is encoded as plain text, never as a marker.
- A template sees the unmodified text and may inspect and cut it (`"</think>" in content`, `split`, `trim`, slices).
- Ordinary messages give the same ids as tokenising the whole rendered prompt at once.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from types import CodeType
from typing import Any, Literal, NoReturn, get_args

from jinja2 import TemplateError

from localdflash.base.errors import LocaldflashError, ModelError, UsageError
from localdflash.text.sanitize import sanitize
from localdflash.text.template_sandbox import RenderBudget, Sandbox
from localdflash.text.thoughts import split_thoughts
from localdflash.text.tokenizer import Tokenizer
from localdflash.text.user_text import Disguise, PromptStretch

Role = Literal["system", "user", "assistant", "tool"]
TemplateValue = str | bool | int | float
MAX_TEMPLATE_CHARS = 64_000
MAX_CHARS, MAX_SECONDS = 64_000_000, 5.0  # budget of one rendering
_THOUGHT_FIELDS = ("reasoning_content", "reasoning", "thinking")
_HAS_FIELD = re.compile(rf"""[.'"]({"|".join(_THOUGHT_FIELDS)})\b""")


@dataclass(frozen=True)
class TemplateMessage:
    """One turn of a conversation. Answers may have `calls`; a tool's result has its call's id and the tool's name."""

    role: Role
    content: str
    calls: tuple["CalledTool", ...] = ()
    call_id: str = ""
    name: str = ""


@dataclass(frozen=True)
class CalledTool:
    """Call of a tool; `arguments` is an object, or text that is not valid JSON."""

    id: str
    name: str
    arguments: object


def encode_chat(tokenizer: Tokenizer, template: str, messages: Sequence[TemplateMessage]) -> list[int]:
    """Return the ids of a conversation, with BOS if the model needs it."""
    return encode_prompt(tokenizer, render(template, messages, variables=tokenizer.template_tokens()))


def encode_prompt(tokenizer: Tokenizer, prompt: Sequence[PromptStretch], enough: float = math.inf) -> list[int]:
    """Return the ids of a rendered prompt, with BOS if the model needs it; text after `enough` ids is left out."""
    parts: list[str | int] = []
    for stretch in prompt:
        parts += [stretch.text] if stretch.from_user else tokenizer.split_markers(stretch.text)
    ids = encode_parts(tokenizer, parts, enough=enough)
    bos = tokenizer.bos()
    return ids if bos is None or ids[:1] == [bos] else [bos, *ids]


def encode_answer(tokenizer: Tokenizer, begun: Sequence[PromptStretch], enough: float = math.inf) -> list[int]:
    """Return the ids of a partial answer, to append to the prompt's ids; text after `enough` ids is left out.

    Its stretches `from_user` are the model's own text, in which markers that decode to text (`<think>`) become ids.
    """
    parts: list[str | int] = []
    for text, is_model_text in begun:
        parts += _split_model_text(tokenizer, text) if is_model_text else tokenizer.split_markers(text)
    return encode_parts(tokenizer, parts, continues=True, enough=enough)


def encode_parts(
    tokenizer: Tokenizer, parts: Iterable[str | int], *, continues: bool = False, enough: float = math.inf
) -> list[int]:
    """Return the ids of text and markers; adjacent texts are joined first; text after `enough` ids is left out."""
    ids: list[int] = []
    text = ""
    for part in parts:
        if isinstance(part, str):
            text += part
        else:
            ids += [*tokenizer.encode(text, continues=continues, enough=enough - len(ids)), part]
            text = ""
    return ids + tokenizer.encode(text, continues=continues, enough=enough - len(ids))


def _split_model_text(tokenizer: Tokenizer, text: str) -> list[str | int]:
    """Split a model's text at markers that decode to text; leave it whole if a marker would swallow blanks."""
    parts: list[str | int] = [
        part if isinstance(part, str) or tokenizer.piece(part) else tokenizer.text_of(part)
        for part in tokenizer.split_markers(text)
    ]
    exact = "".join(part if isinstance(part, str) else tokenizer.text_of(part) for part in parts) == text
    return parts if exact else [text]


def render(
    template: str,
    messages: Sequence[TemplateMessage],
    *,
    variables: Mapping[str, TemplateValue] | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
) -> list[PromptStretch]:
    """Render the prompt as stretches of template text and user text; descriptions of `tools` are user text, too.

    ModelError for a template that is broken, refuses the conversation, leaves the sandbox or exceeds the limits.
    """
    _check_messages(messages)
    disguise = Disguise()
    try:
        conversation = [_message_variables(message, template, disguise) for message in messages]
        code = _compile(template)
        sandbox = Sandbox(RenderBudget(MAX_CHARS, MAX_SECONDS), disguise)
        sandbox.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        return disguise.split_prompt(
            sandbox.load(code).render(
                {
                    **(variables or {}),
                    "tools": disguise.hide_all([*tools]) if tools else None,
                    "documents": None,
                    "messages": conversation,
                    "add_generation_prompt": True,
                }
            )
        )
    except LocaldflashError:
        raise
    except Exception as error:  # a template can make Python raise anything
        reason = disguise.reveal(str(error)) or type(error).__name__
        raise ModelError(f"chat template: {_one_line(reason)}; use another template or model") from None


@lru_cache(maxsize=8)
def _compile(template: str) -> CodeType:
    if len(template) > MAX_TEMPLATE_CHARS:
        size = f"expected at most {MAX_TEMPLATE_CHARS} characters, got {len(template)}"
        raise ModelError(f"chat template: too long ({size}); use another model")
    return Sandbox(RenderBudget(MAX_CHARS, MAX_SECONDS), Disguise()).compile_template(template)


def _message_variables(message: TemplateMessage, template: str, disguise: Disguise) -> dict[str, object]:
    """Return a message as this template's variables, with user text disguised."""
    thoughts, answer, has_field = "", message.content, _HAS_FIELD.search(template)
    if has_field and message.role == "assistant":
        thoughts, answer, _ = split_thoughts(message.content)
    if message.calls and has_field and has_field[1] != "reasoning_content":  # gpt-oss, Gemma: calls follow one text
        thoughts, answer = "\n\n".join(filter(None, (thoughts, answer))), ""
    fields: dict[str, object] = {"content": answer}
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


def _check_messages(messages: Sequence[TemplateMessage]) -> None:
    if not messages:
        raise UsageError("chat: no messages; send at least one")
    for message in messages:
        if message.role not in get_args(Role):
            role = _one_line(str(message.role))
            raise UsageError(f"chat: unknown role {role!r} (expected one of {', '.join(get_args(Role))})")


def _raise_exception(message: object = "the template refuses this conversation") -> NoReturn:
    raise TemplateError(str(message))


def _strftime_now(form: object) -> str:
    return datetime.now().strftime(str(form)[:100])


def _one_line(text: str) -> str:
    return sanitize(" ".join(text.split()))[:200]
