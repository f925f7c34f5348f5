"""A chat request as the engine runs it: its prompt by the model's template, tools, and the form of the answer.

OpenAI's chat requests are read here as they are; Anthropic's, and OpenAI's Responses, are translated to them before.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import msgspec
from msgspec import UnsetType

from localdflash.base.errors import ModelError
from localdflash.engine.generate import Request
from localdflash.engine.sampling import Constraint
from localdflash.engine.sampling_params import SamplingParams
from localdflash.loading.load_pair import LoadedPair
from localdflash.server.api.api_state import AppState
from localdflash.server.api.content_blocks import AnswerParts
from localdflash.server.api.generation import (
    NO_LIMIT,
    GenerationRequest,
    MakeConstraint,
    PreparedRequest,
    choices,
    constraint_of,
    limit_of,
    params_of,
)
from localdflash.server.api.http_errors import ApiError, bad
from localdflash.server.api.schemas import (
    ChatMessage,
    ChatRequest,
    Effort,
    NamedFunction,
    NamedTool,
    TextPart,
    Tool,
    ToolCall,
)
from localdflash.text.answer_format import AnswerStart, FirstPart, format_of, template_switches
from localdflash.text.chat_template import CalledTool, Role, TemplateMessage, encode_answer, encode_prompt, render
from localdflash.text.grammar import Grammars
from localdflash.text.repetition import Repetition
from localdflash.text.thoughts import ThoughtSplit, joined, split
from localdflash.text.tokenizer import Tokenizer
from localdflash.text.tool_calls import CallReader, Schemas, call_reader, syntax_of
from localdflash.text.tool_grammar import call_constraint
from localdflash.text.tools_in_words import describe_in_words
from localdflash.text.user_text import PromptStretch

TEMPERATURE = 1.0  # where a request does not say, as OpenAI documents
ROLES: Mapping[str, Role] = {**{role: role for role in get_args(Role)}, "developer": "system"}


@dataclass(frozen=True)
class ToolOptions:
    """Tools that an answer may call, or must call."""

    described: Sequence[Mapping[str, Any]] = ()  # as the template takes them
    schemas: Schemas = field(default_factory=dict)  # of those that may be called
    must: bool = False
    several: bool = True  # calls in one answer

    def reader(self, tokenizer: Tokenizer) -> CallReader | None:
        """Return a reader of the calls in the text of one choice."""
        return call_reader(tokenizer, self.schemas) if self.schemas else None

    def stops(self, tokenizer: Tokenizer) -> tuple[str, ...]:
        """Return the strings that end an answer: after its only call, or before a tool result that it invents."""
        reader = self.reader(tokenizer)
        if not reader:
            return ()
        made_up = ("<tool_response>",) if syntax_of(tokenizer) == "words" else ()
        return (reader.closing, *made_up) if reader.closing and not self.several else made_up

    def constraint(self, tokenizer: Tokenizer, grammars: Grammars) -> Callable[[], Constraint] | None:
        """Return a maker of the constraint that keeps the calls of one choice to their schemas."""
        return call_constraint(tokenizer, grammars, self.schemas, must=self.must) if self.schemas else None


@dataclass(frozen=True)
class AnswerPrompt:
    """Prompt of an answer, as the model's chat template makes it."""

    tokenizer: Tokenizer
    stretches: Sequence[PromptStretch]
    start: AnswerStart  # what the answer begins with

    @property
    def text(self) -> str:
        """Return the text that the model reads."""
        return "".join(piece.text for piece in (*self.stretches, *self.start.prompt))

    def encode(self) -> list[int]:
        """Return the token ids that the model reads."""
        return encode_prompt(self.tokenizer, self.stretches) + encode_answer(self.tokenizer, self.start.prompt)

    def prepare(self, max_tokens: int, params: SamplingParams) -> PreparedRequest:
        """Return the request of the answer."""
        request = Request(self.encode(), max_tokens, params, self.tokenizer.ends)
        return PreparedRequest(request, make_decoder=self.start.spelling)


def render_chat(
    loaded: LoadedPair,
    messages: Sequence[TemplateMessage],
    *,
    variables: Mapping[str, str | bool] | None = None,
    goes_on: bool = False,
    tools: Sequence[Mapping[str, Any]] = (),
    first_part: FirstPart = "",
) -> AnswerPrompt:
    """Return the prompt of the answer to these messages; `variables` are switches of the model's chat template.

    With `goes_on` the last message is an answer to be continued; with `first_part` it has no thoughts before it, for a
    grammar that knows none. `tools` are described to the model, in words if its template knows none. ModelError if the
    model has no template; also raises what `render` does.
    """
    tokenizer = loaded.tokenizer
    if not (template := tokenizer.chat_template()):
        raise ModelError(f"{loaded.files.target}: the model has no chat template: it can complete, but not chat")
    asked, begun = (messages[:-1], messages[-1].content) if goes_on else (messages, "")
    known = {**tokenizer.template_tokens(), **template_switches(template, variables)}
    if syntax_of(tokenizer) == "words":
        asked, tools = describe_in_words(asked, tools), ()
    stretches = render(template, asked, variables=known, tools=tools)
    return AnswerPrompt(tokenizer, stretches, format_of(tokenizer).start(stretches, begun, first_part=first_part))


async def prepare_chat(state: AppState, body: ChatRequest) -> tuple[GenerationRequest, Callable[[], AnswerParts]]:
    """Return what the engine runs for a chat request, and a maker of the parts of a choice.

    ApiError names an invalid field. With `reasoning_format` "none" thoughts stay in a choice's text.
    """
    loaded = await state.ready("chat", body.model)
    tools = tools_of(body)
    generation = await asyncio.to_thread(_generation, loaded, body, tools, state.grammars(loaded))
    apart = body.reasoning_format != "none"
    begun = messages_of(body.messages)[-1].content if body.continue_final_message else ""
    thinking = split(begun)[2]
    return generation, lambda: AnswerParts(
        ThoughtSplit(thinking=thinking, begun=bool(begun)) if apart else None, tools.reader(loaded.tokenizer)
    )


def _generation(loaded: LoadedPair, body: ChatRequest, tools: ToolOptions, grammars: Grammars) -> GenerationRequest:
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "top_logprobs: needs logprobs to be true", param="top_logprobs", code="invalid_value")
    limit = limit_of(body.max_completion_tokens, body.max_tokens, body.n_predict, default=NO_LIMIT)
    messages, params = messages_of(body.messages), params_of(body, TEMPERATURE)
    continues = goes_on(body.continue_final_message, messages)
    calls = tools.constraint(loaded.tokenizer, grammars)
    formats = constraint_of(body, grammars, *_formats(body, grammars))
    if tools.schemas and formats:
        raise bad("tools", "not together with a form of the answer")
    prompt = render_chat(
        loaded,
        messages,
        variables=variables_of(body),
        goes_on=continues,
        first_part="call" if tools.must else "text" if formats else "",
        tools=tools.described,
    )
    prepared = replace(prompt.prepare(limit, params), stops=tools.stops(loaded.tokenizer))
    if body.prediction:
        text = text_of(body.prediction.content, "prediction.content")
        prepared = replace(prepared, request=replace(prepared.request, documents=[loaded.tokenizer.encode(text)]))
    top_logprobs = (body.top_logprobs or 0) if body.logprobs else None
    requests, stops = choices(loaded, prepared, body, body.n or 1, calls or formats, top_logprobs, param="messages")
    ending = Repetition if body.end_repeats else None
    return GenerationRequest(
        loaded, requests, stops, document=body.document, ending=ending, make_decoder=prepared.make_decoder
    )


def messages_of(given: Sequence[ChatMessage]) -> list[TemplateMessage]:
    """Convert messages to those of the chat template; ApiError names the invalid field."""
    messages = []
    names: dict[str, str] = {}  # of the tools that were called, by the id of the call
    for number, message in enumerate(given):
        place = f"messages[{number}]"
        if message.role not in ROLES:
            raise bad(f"{place}.role", f"unknown; one of {', '.join(ROLES)}")
        role = ROLES[message.role]
        calls = tuple(map(_called, message.tool_calls or ())) if role == "assistant" else ()
        names |= {call.id: call.name for call in calls}
        if isinstance(message.content, UnsetType) and not calls:
            raise bad(f"{place}.content", "missing")
        content = text_of(None if isinstance(message.content, UnsetType) else message.content, f"{place}.content")
        thoughts = (message.reasoning_content or "") if role == "assistant" else ""
        call_id = (message.tool_call_id or "") if role == "tool" else ""
        messages.append(TemplateMessage(role, joined(thoughts, content), calls, call_id, names.get(call_id, "")))
    return messages


def tools_of(body: ChatRequest) -> ToolOptions:
    """Return the tools of a request; ApiError if a schema is invalid, or the chosen tool is missing."""
    if not body.tools and body.tool_choice not in (None, "none", "auto"):
        raise bad("tool_choice", "there are no tools to choose from")
    if not body.tools or body.tool_choice == "none":
        return ToolOptions()
    schemas = {tool.function.name: tool.function.parameters or {} for tool in body.tools}
    for number, schema in enumerate(schemas.values()):
        check_schema(f"tools[{number}].function.parameters", schema)
    wanted = body.tool_choice.function.name if isinstance(body.tool_choice, NamedTool) else ""
    if wanted and wanted not in schemas:
        raise bad("tool_choice.function.name", f"no tool {wanted!r} among the tools")
    return ToolOptions(
        described(body.tools),
        {wanted: schemas[wanted]} if wanted else schemas,
        must=bool(wanted) or body.tool_choice == "required",
        several=body.parallel_tool_calls is not False and not wanted,
    )


def named_tool(name: str, tools: Sequence[Tool]) -> NamedTool:
    """Return the choice of one tool; ApiError if it is not among the tools."""
    if name not in [tool.function.name for tool in tools]:
        raise bad("tool_choice.name", "no such tool among the tools")
    return NamedTool("function", NamedFunction(name))


def clamp_effort(effort: Effort | None) -> Literal["none", "minimal", "low", "medium", "high"] | None:
    """Return a reasoning effort as a chat request may have it."""
    match effort:
        case "xhigh" | "max":
            return "high"
        case known:
            return known


def goes_on(asked: bool | None, messages: Sequence[TemplateMessage]) -> bool:
    """Return whether the last message is an answer to continue; ApiError if it is not the assistant's."""
    if asked and messages[-1].role != "assistant":
        raise bad("continue_final_message", "the last message is not from the assistant")
    return bool(asked)


def variables_of(body: ChatRequest) -> dict[str, str | bool]:
    """Return the switches of the chat template, OpenAI's effort among them."""
    match body.reasoning_effort:
        case None:
            effort: dict[str, str | bool] = {}
        case "none":
            effort = {"enable_thinking": False}
        case "minimal":
            effort = {"reasoning_effort": "low"}
        case known:
            effort = {"reasoning_effort": known}
    return effort | (body.chat_template_kwargs or {})


def _formats(body: ChatRequest, grammars: Grammars) -> list[tuple[str, MakeConstraint]]:
    """Return the constraint that `response_format` sets, if any."""
    given = body.response_format
    if given is None or given.type == "text":
        return []
    schema = given.json_schema.schema if given.json_schema else given.schema
    if schema is not None:
        known = schema
        return [("response_format", lambda: grammars.json_schema(known))]
    if given.type == "json_schema":
        raise bad("response_format.json_schema.schema", "missing")
    return [("response_format", grammars.json_object)]


def _called(call: ToolCall) -> CalledTool:
    """Convert a call; arguments that are JSON become an object, which each template writes in its own way."""
    try:
        arguments: object = msgspec.json.decode(call.function.arguments or "{}", type=dict)
    except (msgspec.DecodeError, RecursionError):
        arguments = call.function.arguments
    return CalledTool(call.id, call.function.name, arguments)


def text_of(content: str | list[TextPart] | None, place: str) -> str:
    """Return the content of a message as one text."""
    if not isinstance(content, list):
        return content or ""
    for number, part in enumerate(content):
        if part.type != "text" or part.text is None:
            raise bad(f"{place}[{number}]", "only parts of type text are supported")
    return "".join(part.text or "" for part in content)


def described(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Convert tools to those of the chat template."""
    return [msgspec.to_builtins(tool) for tool in tools]


def check_schema(place: str, schema: Mapping[str, Any]) -> None:
    """Raise ApiError if a part of a schema has the wrong type; the grammar checks the rest."""
    for name, kind, told in (("properties", dict, "object"), ("$defs", dict, "object"), ("required", list, "array")):
        if not isinstance(schema.get(name, kind()), kind):
            raise bad(f"{place}.{name}", f"expected an {told}")
