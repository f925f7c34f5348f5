"""The fields of a chat's request to an engine, as docs/api.md has them."""

from collections.abc import Sequence

from localdflash.chat.messages import Message, prompt_text
from localdflash.chat.sampling_settings import ChatSettings
from localdflash.engine.sampling_params import SamplingParams
from localdflash.text.thoughts import split


def wire_messages(messages: Sequence[Message], system: str, *, ours: bool = True) -> list[dict[str, str]]:
    """Return the messages for the API; remote servers get no thoughts of earlier answers."""
    wire = [{"role": "system", "content": system}] if system else []
    for message in messages:
        text = prompt_text(message)
        text = text if ours or message.role != "assistant" else split(text)[1]
        wire.append({"role": message.role, "content": text})
    return wire


def openai_fields(settings: ChatSettings) -> dict[str, object]:
    """Return the sampling fields of OpenAI's API, without defaults and unset ones."""
    fields: dict[str, object] = {"stream": True, "stream_options": {"include_usage": True}}
    if settings.temperature is not None:
        fields["temperature"] = settings.temperature
    if settings.top_p not in (None, 1.0):
        fields["top_p"] = settings.top_p
    if settings.max_tokens:
        fields["max_tokens"] = settings.max_tokens
    if settings.seed is not None:
        fields["seed"] = settings.seed
    return fields


def own_fields(settings: ChatSettings, *, goes_on: bool) -> dict[str, object]:
    """Return all fields of resolved settings; sampling gets a seed, so that a repeated request has the same answer."""
    fields = openai_fields(settings) | template_fields(settings, goes_on=goes_on)
    fields |= {"steps": True, "end_repeats": True}
    fields["reasoning_format"] = "none"  # one text, whose tokens have the sizes that the steps tell
    nothing = SamplingParams()
    for name in ("top_k", "min_p", "repetition_penalty"):
        if (value := getattr(settings, name)) != getattr(nothing, name):
            fields[name] = value
    if settings.temperature and settings.seed is None:
        import secrets

        fields["seed"] = secrets.randbits(31)
    if not settings.draft:
        fields["draft"] = False
    return fields


def template_fields(settings: ChatSettings, *, goes_on: bool = False) -> dict[str, object]:
    """Return the fields, besides the messages, that decide the prompt."""
    fields: dict[str, object] = {"continue_final_message": True} if goes_on else {}
    return fields | {"chat_template_kwargs": template_variables(settings)}


def template_variables(settings: ChatSettings) -> dict[str, str | bool]:
    """Return the variables of the model's chat template."""
    return {"enable_thinking": settings.thinking}
