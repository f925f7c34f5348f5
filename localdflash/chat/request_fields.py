"""Build the fields of a chat request: messages, sampling and template options, for our daemon and other servers."""

import os
from collections.abc import Sequence

from localdflash.chat.messages import Message, prompt_text
from localdflash.chat.sampling_settings import ChatSettings
from localdflash.text.thoughts import split_thoughts


def wire_messages(messages: Sequence[Message], system: str, *, is_localdflash: bool = True) -> list[dict[str, str]]:
    """Return the messages as the API expects them, without earlier thoughts unless the server is localdflash."""
    wire = [{"role": "system", "content": system}] if system else []
    for message in messages:
        text = prompt_text(message)
        text = text if is_localdflash or message.role != "assistant" else split_thoughts(text)[1]
        wire.append({"role": message.role, "content": text})
    return wire


def openai_fields(settings: ChatSettings) -> dict[str, object]:
    """Return streaming fields and non-default sampling settings, for any OpenAI-compatible server."""
    fields: dict[str, object] = {"stream": True, "stream_options": {"include_usage": True}}
    unset = {"temperature": (None,), "top_p": (None, 1.0), "max_tokens": (None, 0), "seed": (None,)}
    return fields | {name: value for name, none in unset.items() if (value := getattr(settings, name)) not in none}


def localdflash_fields(settings: ChatSettings, *, continue_last: bool) -> dict[str, object]:
    """Return the fields for localdflash. With sampling, add a seed, so that a repeated request has the same answer."""
    fields = openai_fields(settings) | template_fields(settings, continue_last=continue_last)
    fields |= {"steps": True, "end_repeats": True}
    fields["reasoning_format"] = "none"  # thoughts stay in the text, so that the token sizes of the steps match
    # Send neutral values too: for a missing field, the server uses the value that the model's makers recommend.
    fields |= {name: getattr(settings, name) for name in ("top_p", "top_k", "min_p", "repetition_penalty")}
    if settings.temperature and settings.seed is None:
        fields["seed"] = int.from_bytes(os.urandom(4)) >> 1  # 31 bits
    if not settings.draft:
        fields["draft"] = False
    return fields


def template_fields(settings: ChatSettings, *, continue_last: bool = False) -> dict[str, object]:
    """Return the fields, other than the messages, that affect the prompt."""
    fields: dict[str, object] = {"continue_final_message": True} if continue_last else {}
    return fields | {"chat_template_kwargs": {"enable_thinking": settings.thinking}}
