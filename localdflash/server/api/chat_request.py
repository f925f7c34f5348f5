"""Turn chat requests of all HTTP APIs into generations: prompt by the chat template, tools, output constraints."""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import msgspec
from msgspec import UNSET

from localdflash.base.errors import ModelError
from localdflash.engine.generate import Request
from localdflash.engine.sampling_params import SamplingParams
from localdflash.loading.load_pair import LoadedPair
from localdflash.server.api.api_state import AppState
from localdflash.server.api.content_blocks import AnswerParts
from localdflash.server.api.generation import (
    COUNTED_CONTEXTS,
    NO_LIMIT,
    GenerationRequest,
    MakeConstraint,
    constraint_of,
    limit_of,
    params_of,
    with_choices,
)
from localdflash.server.api.http_responses import bad
from localdflash.server.api.schemas import AllowedChoice, ChatMessage, ChatRequest, NamedTool, TextPart, ToolCall
from localdflash.text.answer_format import AnswerStart, FirstPart, adapt_template_variables, start_answer
from localdflash.text.chat_template import (
    CalledTool,
    Role,
    TemplateMessage,
    TemplateValue,
    encode_answer,
    encode_prompt,
    render,
)
from localdflash.text.grammar import Grammars
from localdflash.text.stream import Repetition
from localdflash.text.thoughts import ThoughtSplit, join_thoughts, split_thoughts
from localdflash.text.tokenizer import Tokenizer
from localdflash.text.tool_calls import CallReader, Schemas, call_reader, syntax_of
from localdflash.text.tool_grammar import call_constraint
from localdflash.text.tools_in_words import describe_in_words
from localdflash.text.user_text import PromptStretch

DEFAULT_TEMPERATURE = 1.0  # OpenAI's default, for raw prompts, and for chats if the model's makers recommend none
TEMPLATE_ROLES: Mapping[str, Role] = {**{role: role for role in get_args(Role)}, "developer": "system"}


@dataclass(frozen=True)
class ToolOptions:
    """Tools of a request, and rules for the tool calls of its answer."""

    template_tools: Sequence[Mapping[str, Any]] = ()  # as the chat template reads them
    schemas: Schemas = field(default_factory=dict)  # argument schemas of the tools that the answer may call
    requires_call: bool = False  # whether the answer must be a tool call
    allows_more: bool = True  # whether text or further calls may follow the first call

    def reader(self, tokenizer: Tokenizer) -> CallReader | None:
        """Return a parser for the tool calls in one choice's text; None if no tool may be called."""
        return call_reader(tokenizer, self.schemas) if self.schemas else None

    def stops(self, tokenizer: Tokenizer) -> tuple[str, ...]:
        """Return the strings that end an answer: the end of its only call, or the start of an invented tool result."""
        reader = self.reader(tokenizer)
        if not reader:
            return ()
        invented = ("<tool_response>",) if syntax_of(tokenizer) == "words" else ()
        return (reader.closing, *invented) if reader.closing and not self.allows_more else invented


@dataclass(frozen=True)
class AnswerPrompt:
    """Prompt of an answer, rendered by the model's chat template."""

    loaded: LoadedPair
    stretches: Sequence[PromptStretch]
    start: AnswerStart  # prompt text after `stretches`, and the decoder of the answer

    @property
    def text(self) -> str:
        """Return the text of the prompt."""
        return "".join(piece.text for piece in (*self.stretches, *self.start.added))

    def encode(self, enough: float = math.inf) -> list[int]:
        """Return the prompt's token ids; a long prompt is only tokenized up to about `enough` ids."""
        tokenizer = self.loaded.tokenizer
        ids = encode_prompt(tokenizer, self.stretches, enough)
        return ids + encode_answer(tokenizer, self.start.added, enough - len(ids))

    def prepare(self, max_tokens: int, params: SamplingParams) -> GenerationRequest:
        """Tokenize the prompt, up to `COUNTED_CONTEXTS` times the context, and return a generation with one choice."""
        ids = self.encode(COUNTED_CONTEXTS * self.loaded.context)
        request = Request(ids, max_tokens, params, self.loaded.tokenizer.ends)
        return GenerationRequest(self.loaded, [request], make_decoder=self.start.make_decoder)


def render_chat(
    loaded: LoadedPair,
    messages: Sequence[TemplateMessage],
    *,
    variables: Mapping[str, TemplateValue] | None = None,  # template variables that the request sets
    continues_last: bool = False,  # the answer continues the last message
    tools: Sequence[Mapping[str, Any]] = (),
    first_part: FirstPart = "",  # "text" or "call": the answer starts with it, without thoughts
) -> AnswerPrompt:
    """Render the prompt of an answer with the model's chat template; ModelError if the model has none."""
    tokenizer = loaded.tokenizer
    if not (template := tokenizer.chat_template()):
        raise ModelError(f"{loaded.files.target}: the model has no chat template; use it for completions only")
    messages = _with_one_system(messages)
    history, begun = (messages[:-1], messages[-1].content) if continues_last else (messages, "")
    variables = {**tokenizer.template_tokens(), **adapt_template_variables(template, variables)}
    if syntax_of(tokenizer) == "words":
        history, tools = describe_in_words(history, tools), ()
    stretches = _render_messages(template, history, variables, tools)
    return AnswerPrompt(loaded, stretches, start_answer(tokenizer, stretches, begun, first_part=first_part))


def _render_messages(
    template: str,
    messages: Sequence[TemplateMessage],
    variables: Mapping[str, TemplateValue],
    tools: Sequence[Mapping[str, Any]],
) -> list[PromptStretch]:
    """Render the prompt. If the template rejects or drops a late system message, render late ones as user text."""
    late = [one.content.strip() for one in messages[1:] if one.role == "system"]
    if not late:
        return render(template, messages, variables=variables, tools=tools)
    with suppress(ModelError):
        stretches = render(template, messages, variables=variables, tools=tools)
        text = "".join(piece.text for piece in stretches)
        if all(one in text for one in late):
            return stretches
    return render(template, _with_reminders(messages), variables=variables, tools=tools)


def _with_one_system(messages: Sequence[TemplateMessage]) -> Sequence[TemplateMessage]:
    """Join the system messages at the start into one, because templates accept only one."""
    count = next((at for at, one in enumerate(messages) if one.role != "system"), len(messages))
    if count < 2:
        return messages
    system = "\n\n".join(filter(None, (one.content for one in messages[:count])))
    return [TemplateMessage("system", system), *messages[count:]]


def _with_reminders(messages: Sequence[TemplateMessage]) -> list[TemplateMessage]:
    """Turn system messages after the first message into user text, and join consecutive user messages."""
    reminded = [*messages[:1]]
    for message in messages[1:]:
        content = message.content
        if message.role == "system":
            content = f"<system-reminder>\n{content}\n</system-reminder>"
        if message.role in ("system", "user") and reminded[-1].role == "user":  # templates require alternating roles
            reminded[-1] = TemplateMessage("user", f"{reminded[-1].content}\n\n{content}")
        else:
            reminded.append(TemplateMessage("user", content) if message.role == "system" else message)
    return reminded


def prompt_of(loaded: LoadedPair, body: ChatRequest, *, first_part: FirstPart = "") -> AnswerPrompt:
    """Render the prompt of a chat request; ApiError names an invalid field. `first_part`: see `render_chat`."""
    messages = messages_of(body.messages)
    if body.continue_final_message and messages[-1].role != "assistant":
        raise bad("continue_final_message", "the last message is not from the assistant")
    match body.reasoning_effort:
        case None:
            effort: dict[str, TemplateValue] = {}
        case "none":
            effort = {"enable_thinking": False}
        case level:  # templates know low, medium and high
            effort = {"reasoning_effort": {"minimal": "low", "xhigh": "high", "max": "high"}.get(level, level)}
    return render_chat(
        loaded,
        messages,
        variables=effort | (body.chat_template_kwargs or {}),
        continues_last=bool(body.continue_final_message),
        tools=tools_of(body).template_tools,
        first_part=first_part,
    )


async def count_prompt(state: AppState, body: ChatRequest) -> int:
    """Return the number of tokens of a chat request's prompt, which may be longer than the context."""
    loaded = await state.ready("chat", body.model)
    return await asyncio.to_thread(lambda: len(prompt_of(loaded, body).encode()))


async def prepare_chat(state: AppState, body: ChatRequest) -> tuple[GenerationRequest, Callable[[], AnswerParts]]:
    """Return the generation for a chat request, and a function that makes an `AnswerParts` for one choice."""
    loaded = await state.ready("chat", body.model)
    tools = tools_of(body)
    generation = await state.prepare(loaded, _prepare, loaded, body, tools, state.grammars(loaded))
    begun = messages_of(body.messages)[-1].content if body.continue_final_message else ""
    thinking = split_thoughts(begun)[2]

    def make_parts() -> AnswerParts:
        split = None if body.reasoning_format == "none" else ThoughtSplit(thinking=thinking, begun=bool(begun))
        return AnswerParts(split, tools.reader(loaded.tokenizer))

    if tools.schemas:
        generation = replace(generation, is_exempt=lambda text: make_parts().ends_in_value(text))
    return generation, make_parts


def _prepare(loaded: LoadedPair, body: ChatRequest, tools: ToolOptions, grammars: Grammars) -> GenerationRequest:
    if body.top_logprobs is not None and not body.logprobs:
        raise bad("top_logprobs", "requires logprobs: true")
    limit = limit_of(body.max_completion_tokens, body.max_tokens, body.n_predict, default=NO_LIMIT)
    calls = (
        call_constraint(loaded.tokenizer, grammars, tools.schemas, required=tools.requires_call)
        if tools.schemas
        else None
    )
    formats = constraint_of(body, grammars, *_format_constraints(body, grammars))
    if tools.schemas and formats:
        raise bad("tools", "cannot be combined with response_format, json_schema or grammar")
    prompt = prompt_of(loaded, body, first_part="call" if tools.requires_call else "text" if formats else "")
    generation = replace(
        prompt.prepare(limit, params_of(body, DEFAULT_TEMPERATURE, loaded.sampling)),
        stops=tools.stops(loaded.tokenizer),
        ending=Repetition if body.end_repeats else None,
    )
    if body.prediction:
        text = text_of(body.prediction.content, "prediction.content")
        generation.requests[0].documents = [loaded.tokenizer.encode(text, enough=loaded.context)]
    top_logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return with_choices(generation, body, body.n or 1, calls or formats, top_logprobs, param="messages")


def messages_of(given: Sequence[ChatMessage]) -> list[TemplateMessage]:
    """Convert messages for the chat template; ApiError names an invalid field."""
    messages = []
    names: dict[str, str] = {}  # tool names by call id
    for number, message in enumerate(given):
        param = f"messages[{number}]"
        if message.role not in TEMPLATE_ROLES:
            raise bad(f"{param}.role", f"unknown (expected one of {', '.join(TEMPLATE_ROLES)})")
        role = TEMPLATE_ROLES[message.role]
        is_answer = role == "assistant"
        calls = tuple(map(_convert_call, message.tool_calls or ())) if is_answer else ()
        names |= {call.id: call.name for call in calls}
        if message.content is UNSET and not calls:
            raise bad(f"{param}.content", "missing")
        content = text_of(message.content or None, f"{param}.content")
        thoughts = (message.reasoning_content or "") if is_answer else ""
        call_id = (message.tool_call_id or "") if role == "tool" else ""
        messages.append(TemplateMessage(role, join_thoughts(thoughts, content), calls, call_id, names.get(call_id, "")))
    return messages


def tools_of(body: ChatRequest) -> ToolOptions:
    """Return the tools of a request; ApiError if a schema is invalid, or `tool_choice` names a missing tool."""
    if not body.tools and body.tool_choice not in (None, "none", "auto"):
        raise bad("tool_choice", "requires tools, but the request has none")
    if not body.tools or body.tool_choice == "none":
        return ToolOptions()
    schemas = {tool.function.name: tool.function.parameters or {} for tool in body.tools}
    for number, schema in enumerate(schemas.values()):
        _check_schema(f"tools[{number}]", schema)
    match body.tool_choice:
        case NamedTool(function):
            allowed, required = [function.name], True
        case AllowedChoice(choice):
            allowed, required = [tool.function.name for tool in choice.tools], choice.mode == "required"
        case choice:
            allowed, required = list(schemas), choice == "required"
    if missing := [name for name in allowed if name not in schemas]:
        raise bad("tool_choice", f"{missing[0]!r} is not among the tools")
    if not allowed:
        raise bad("tool_choice", "no function among the allowed tools")
    return ToolOptions(
        template_tools=msgspec.to_builtins(body.tools),
        schemas={name: schemas[name] for name in allowed},
        requires_call=required,
        allows_more=body.parallel_tool_calls is not False and not required,
    )


def _format_constraints(body: ChatRequest, grammars: Grammars) -> list[tuple[str, MakeConstraint]]:
    """Return [(field name, maker of the constraint)] for `response_format`; [] if it sets no constraint."""
    given = body.response_format
    if given is None or given.type == "text":
        return []
    schema = given.json_schema.schema if given.json_schema else given.schema
    if schema is not None:
        return [("response_format", lambda: grammars.json_schema(schema))]
    if given.type == "json_schema":
        raise bad("response_format.json_schema.schema", "missing")
    return [("response_format", grammars.json_object)]


def _convert_call(call: ToolCall) -> CalledTool:
    """Convert a tool call. Arguments that are a JSON object are parsed, because templates format the object."""
    try:
        arguments: object = msgspec.json.decode(call.function.arguments or "{}", type=dict)
    except (msgspec.DecodeError, RecursionError):
        arguments = call.function.arguments
    return CalledTool(call.id, call.function.name, arguments)


def text_of(content: str | Sequence[TextPart] | None, param: str) -> str:
    """Join the texts and refusals in the parts of a message; ApiError for another part."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = [part.refusal if part.type == "refusal" else part.text for part in content]
    for number, (part, text) in enumerate(zip(content, texts, strict=True)):
        if text is None or not part.type.endswith(("text", "refusal")):
            raise bad(f"{param}[{number}]", "expected text (images, files and audio are not supported)")
    return "".join(text or "" for text in texts)


def _check_schema(param: str, schema: Mapping[str, Any]) -> None:
    """Raise ApiError if `properties`, `$defs` or `required` has the wrong type; the grammar checks the rest."""
    for name, kind, noun in (("properties", dict, "object"), ("$defs", dict, "object"), ("required", list, "array")):
        if not isinstance(schema.get(name, kind()), kind):
            raise bad(param, f"invalid {name} in the schema (expected an {noun})")
