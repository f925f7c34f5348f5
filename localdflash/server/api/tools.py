"""The tools of a request: what the template is told of them, and how calls of them are found and kept to their form."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from localdflash.engine.sampling import Constraint
from localdflash.server.api.chat_messages import bad
from localdflash.server.api.schemas import ChatRequest, NamedTool, Tool
from localdflash.text.grammar import Grammars
from localdflash.text.tokenizer import Tokenizer
from localdflash.text.tool_calls import CallReader, Schemas, call_reader, syntax_of
from localdflash.text.tool_grammar import call_constraint


@dataclass(frozen=True)
class AskedTools:
    """The tools that an answer may call, or has to."""

    described: Sequence[Mapping[str, Any]] = ()  # as the template takes them
    schemas: Schemas = field(default_factory=dict)  # of those that may be called
    must: bool = False
    several: bool = True  # calls in one answer

    def reader(self, tokenizer: Tokenizer) -> CallReader | None:
        """What finds the calls in the text of one choice."""
        return call_reader(tokenizer, self.schemas) if self.schemas else None

    def stops(self, tokenizer: Tokenizer) -> tuple[str, ...]:
        """What ends an answer: its only call, or what a model that was told in words makes up as the result."""
        reader = self.reader(tokenizer)
        if not reader:
            return ()
        made_up = ("<tool_response>",) if syntax_of(tokenizer) == "words" else ()
        return (reader.closing, *made_up) if reader.closing and not self.several else made_up

    def constraint(self, tokenizer: Tokenizer, grammars: Grammars) -> Callable[[], Constraint] | None:
        """A maker of what keeps the calls of one choice to their schemas."""
        return call_constraint(tokenizer, grammars, self.schemas, must=self.must) if self.schemas else None


def tools_of(body: ChatRequest) -> AskedTools:
    """The tools of a request; ApiError if a schema is none, or a name is not among them."""
    if not body.tools and body.tool_choice not in (None, "none", "auto"):
        raise bad("tool_choice", "there are no tools to choose from")
    if not body.tools or body.tool_choice == "none":
        return AskedTools()
    schemas = {tool.function.name: tool.function.parameters or {} for tool in body.tools}
    for number, schema in enumerate(schemas.values()):
        check_schema(f"tools[{number}].function.parameters", schema)
    wanted = body.tool_choice.function.name if isinstance(body.tool_choice, NamedTool) else ""
    if wanted and wanted not in schemas:
        raise bad("tool_choice.function.name", f"no tool {wanted!r} among the tools")
    return AskedTools(
        described(body.tools),
        {wanted: schemas[wanted]} if wanted else schemas,
        must=bool(wanted) or body.tool_choice == "required",
        several=body.parallel_tool_calls is not False and not wanted,
    )


def described(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Tools as templates take them."""
    return [msgspec.to_builtins(tool) for tool in tools]


def check_schema(place: str, schema: Mapping[str, Any]) -> None:
    """Refuse a schema whose own parts are not what they have to be; what they say is the grammar's matter."""
    for name, kind, told in (("properties", dict, "object"), ("$defs", dict, "object"), ("required", list, "array")):
        if not isinstance(schema.get(name, kind()), kind):
            raise bad(f"{place}.{name}", f"expected an {told}")
