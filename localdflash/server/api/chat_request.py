"""Chat requests of all HTTP APIs: prompt from the model's chat template, tools, and constraints of the answer."""

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
from localdflash.text.chat_template import CalledTool, Role, TemplateMessage, encode_answer, encode_prompt, render
from localdflash.text.grammar import Grammars
from localdflash.text.stream import Repetition
from localdflash.text.thoughts import ThoughtSplit, join_thoughts, split_thoughts
from localdflash.text.tokenizer import Tokenizer
from localdflash.text.tool_calls import CallReader, Schemas, call_reader, syntax_of
from localdflash.text.tool_grammar import call_constraint
from localdflash.text.tools_in_words import describe_in_words
from localdflash.text.user_text import PromptStretch

TEMPERATURE = 1.0  # default if neither the request nor the model sets it, as OpenAI documents
ROLES: Mapping[str, Role] = {**{role: role for role in get_args(Role)}, "developer": "system"}


@dataclass(frozen=True)
class ToolOptions:
    """Tools that an answer may call, or must call."""

    described: Sequence[Mapping[str, Any]] = ()  # tools as the chat template reads them
    schemas: Schemas = field(default_factory=dict)  # of the tools that the answer may call
    must: bool = False  # the answer must be a call
    several: bool = True  # whether text or further calls may follow the first call

    def reader(self, tokenizer: Tokenizer) -> CallReader | None:
        """Return a parser of the calls in the text of one choice, or None without tools."""
        return call_reader(tokenizer, self.schemas) if self.schemas else None

    def stops(self, tokenizer: Tokenizer) -> tuple[str, ...]:
        """Return the strings that end an answer: after its only call, or before a tool result that it invents."""
        reader = self.reader(tokenizer)
        if not reader:
            return ()
        made_up = ("<tool_response>",) if syntax_of(tokenizer) == "words" else ()
        return (reader.closing, *made_up) if reader.closing and not self.several else made_up


@dataclass(frozen=True)
class AnswerPrompt:
    """Prompt of an answer, rendered by the model's chat template."""

    loaded: LoadedPair
    stretches: Sequence[PromptStretch]
    start: AnswerStart  # prompt text at the start of the answer

    @property
    def text(self) -> str:
        """Return the text of the prompt."""
        return "".join(piece.text for piece in (*self.stretches, *self.start.added))

    def encode(self, enough: float = math.inf) -> list[int]:
        """Return the token ids of the prompt; stop tokenizing after about `enough` ids."""
        tokenizer = self.loaded.tokenizer
        ids = encode_prompt(tokenizer, self.stretches, enough)
        return ids + encode_answer(tokenizer, self.start.added, enough - len(ids))

    def prepare(self, max_tokens: int, params: SamplingParams) -> GenerationRequest:
        """Tokenize the prompt and return a generation with one choice."""
        ids = self.encode(COUNTED_CONTEXTS * self.loaded.context)
        request = Request(ids, max_tokens, params, self.loaded.tokenizer.ends)
        return GenerationRequest(self.loaded, [request], make_decoder=self.start.make_decoder)


def render_chat(
    loaded: LoadedPair,
    messages: Sequence[TemplateMessage],
    *,
    variables: Mapping[str, str | bool] | None = None,
    goes_on: bool = False,
    tools: Sequence[Mapping[str, Any]] = (),
    first_part: FirstPart = "",
) -> AnswerPrompt:
    """Return the prompt; `goes_on` continues the last message. A `first_part` skips thoughts: see `start_answer`."""
    tokenizer = loaded.tokenizer
    if not (template := tokenizer.chat_template()):
        raise ModelError(f"{loaded.files.target}: the model has no chat template; use it for completions only")
    messages = _with_one_system(messages)
    history, begun = (messages[:-1], messages[-1].content) if goes_on else (messages, "")
    known = {**tokenizer.template_tokens(), **adapt_template_variables(template, variables)}
    if syntax_of(tokenizer) == "words":
        history, tools = describe_in_words(history, tools), ()
    stretches = _rendered(template, history, known, tools)
    return AnswerPrompt(loaded, stretches, start_answer(tokenizer, stretches, begun, first_part=first_part))


def _rendered(
    template: str,
    messages: Sequence[TemplateMessage],
    variables: Mapping[str, str | bool],
    tools: Sequence[Mapping[str, Any]],
) -> list[PromptStretch]:
    """Render the prompt. If the template rejects or drops a later system message, reminders replace all of these."""
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
    """Join the leading system messages, because templates accept only one."""
    first = next((at for at, one in enumerate(messages) if one.role != "system"), len(messages))
    if first < 2:
        return messages
    system = "\n\n".join(filter(None, (one.content for one in messages[:first])))
    return [TemplateMessage("system", system), *messages[first:]]


def _with_reminders(messages: Sequence[TemplateMessage]) -> list[TemplateMessage]:
    """Return the messages; system messages after the first become text of adjacent user messages."""
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
    """Return the prompt of a chat request; ApiError names an invalid field."""
    messages = messages_of(body.messages)
    if body.continue_final_message and messages[-1].role != "assistant":
        raise bad("continue_final_message", "the last message is not from the assistant")
    match body.reasoning_effort:
        case None:
            effort: dict[str, str | bool] = {}
        case "none":
            effort = {"enable_thinking": False}
        case known:
            effort = {"reasoning_effort": {"minimal": "low", "xhigh": "high", "max": "high"}.get(known, known)}
    return render_chat(
        loaded,
        messages,
        variables=effort | (body.chat_template_kwargs or {}),
        goes_on=bool(body.continue_final_message),
        tools=tools_of(body).described,
        first_part=first_part,
    )


async def prepare_chat(state: AppState, body: ChatRequest) -> tuple[GenerationRequest, Callable[[], AnswerParts]]:
    """Return the generation of a chat request, and a factory of `AnswerParts`, one for each choice."""
    loaded = await state.ready("chat", body.model)
    tools = tools_of(body)
    generation = await asyncio.to_thread(_generation, loaded, body, tools, state.grammars(loaded))
    begun = messages_of(body.messages)[-1].content if body.continue_final_message else ""
    thinking = split_thoughts(begun)[2]
    return generation, lambda: AnswerParts(
        None if body.reasoning_format == "none" else ThoughtSplit(thinking=thinking, begun=bool(begun)),
        tools.reader(loaded.tokenizer),
    )


def _generation(loaded: LoadedPair, body: ChatRequest, tools: ToolOptions, grammars: Grammars) -> GenerationRequest:
    if body.top_logprobs is not None and not body.logprobs:
        raise bad("top_logprobs", "requires logprobs: true")
    limit = limit_of(body.max_completion_tokens, body.max_tokens, body.n_predict, default=NO_LIMIT)
    calls = call_constraint(loaded.tokenizer, grammars, tools.schemas, required=tools.must) if tools.schemas else None
    formats = constraint_of(body, grammars, *_formats(body, grammars))
    if tools.schemas and formats:
        raise bad("tools", "cannot be combined with response_format, json_schema or grammar")
    prompt = prompt_of(loaded, body, first_part="call" if tools.must else "text" if formats else "")
    generation = replace(
        prompt.prepare(limit, params_of(body, TEMPERATURE, loaded.sampling)),
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
        place = f"messages[{number}]"
        if message.role not in ROLES:
            raise bad(f"{place}.role", f"unknown; one of {', '.join(ROLES)}")
        role = ROLES[message.role]
        answers = role == "assistant"
        calls = tuple(map(_called, message.tool_calls or ())) if answers else ()
        names |= {call.id: call.name for call in calls}
        if message.content is UNSET and not calls:
            raise bad(f"{place}.content", "missing")
        content = text_of(message.content or None, f"{place}.content")
        thoughts = (message.reasoning_content or "") if answers else ""
        call_id = (message.tool_call_id or "") if role == "tool" else ""
        messages.append(TemplateMessage(role, join_thoughts(thoughts, content), calls, call_id, names.get(call_id, "")))
    return messages


def tools_of(body: ChatRequest) -> ToolOptions:
    """Return the tools of a request; ApiError if a schema is invalid, or the chosen tool is missing."""
    if not body.tools and body.tool_choice not in (None, "none", "auto"):
        raise bad("tool_choice", "requires tools, but the request has none")
    if not body.tools or body.tool_choice == "none":
        return ToolOptions()
    schemas = {tool.function.name: tool.function.parameters or {} for tool in body.tools}
    for number, schema in enumerate(schemas.values()):
        _check_schema(f"tools[{number}]", schema)
    match body.tool_choice:
        case NamedTool(function):
            allowed, must = [function.name], True
        case AllowedChoice(choice):
            allowed, must = [tool.function.name for tool in choice.tools], choice.mode == "required"
        case choice:
            allowed, must = list(schemas), choice == "required"
    if missing := [name for name in allowed if name not in schemas]:
        raise bad("tool_choice", f"no tool {missing[0]!r} among the tools")
    if not allowed:
        raise bad("tool_choice", "no function among the allowed tools")
    return ToolOptions(
        msgspec.to_builtins(body.tools),
        {name: schemas[name] for name in allowed},
        must=must,
        several=body.parallel_tool_calls is not False and not must,
    )


def _formats(body: ChatRequest, grammars: Grammars) -> list[tuple[str, MakeConstraint]]:
    """Return the name and the maker of the constraint that `response_format` sets, if any."""
    given = body.response_format
    if given is None or given.type == "text":
        return []
    schema = given.json_schema.schema if given.json_schema else given.schema
    if schema is not None:
        return [("response_format", lambda: grammars.json_schema(schema))]
    if given.type == "json_schema":
        raise bad("response_format.json_schema.schema", "missing")
    return [("response_format", grammars.json_object)]


def _called(call: ToolCall) -> CalledTool:
    """Convert a call; arguments that are a JSON object are parsed, because templates format them themselves."""
    try:
        arguments: object = msgspec.json.decode(call.function.arguments or "{}", type=dict)
    except (msgspec.DecodeError, RecursionError):
        arguments = call.function.arguments
    return CalledTool(call.id, call.function.name, arguments)


def text_of(content: str | Sequence[TextPart] | None, place: str) -> str:
    """Return the content of a message as one text."""
    if content is None or isinstance(content, str):
        return content or ""
    for number, part in enumerate(content):
        if part.text is None or not part.type.endswith("text"):
            raise bad(f"{place}[{number}]", "expected text (images, files and audio are not supported)")
    return "".join(part.text or "" for part in content)


def _check_schema(place: str, schema: Mapping[str, Any]) -> None:
    """Raise ApiError if a part of a tool's schema has the wrong type; the grammar checks the rest."""
    for name, kind, noun in (("properties", dict, "object"), ("$defs", dict, "object"), ("required", list, "array")):
        if not isinstance(schema.get(name, kind()), kind):
            raise bad(place, f"invalid {name} in the schema (expected an {noun})")
