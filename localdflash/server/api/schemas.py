"""Request bodies. A field that is null counts as missing. `request_body` refuses some undeclared fields."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from localdflash.models.backend_names import Backend, RowsMode
from localdflash.server.engine_spec import EvictionPolicy, PairRole
from localdflash.text.chat_template import TemplateValue

Share = Annotated[float, Meta(ge=0.0, le=1.0)]
Seed = Annotated[int, Meta(ge=-1, le=2**63 - 1)]  # -1: a random seed, as with llama-server
Count = Annotated[int, Meta(ge=0, lt=2**31)]
Limit = Annotated[int, Meta(ge=-1, lt=2**31)]  # number of tokens or rank; -1: no limit
Token = Annotated[int, Meta(ge=0, lt=2**31)]
Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]
Bias = Annotated[float, Meta(ge=-100.0, le=100.0)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
LogitBias = (  # bias by token id, or pairs of token id and bias from llama-server's clients
    Annotated[dict[Token, Bias], Meta(max_length=4096)] | Annotated[list[tuple[Token, Bias]], Meta(max_length=4096)]
)
Sampler = Literal[  # of the names without a field here, `request_body` refuses the parameters
    "penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature", "infill"
]
Stop = str | Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(max_length=64)]  # the client Continue sends 17


class GenerationFields(Struct, kw_only=True):
    """Fields of all requests that generate text, in all APIs."""

    model: str | None = None
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0.0, le=10.0)] | None = None
    top_p: Share | None = None
    top_k: Limit | None = None  # -1: off, as with llama-server
    seed: Seed | None = None
    draft: bool | None = None  # False: decode without drafting, for comparisons

    def shared(self) -> dict[str, Any]:
        """Return these fields by name, to copy them to a request of another API."""
        return {name: getattr(self, name) for name in GenerationFields.__struct_fields__}


class SamplingFields(GenerationFields, kw_only=True):
    """Fields of all requests that generate text in OpenAI's, llama-server's and our own API."""

    min_p: Share | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.1, le=10.0)] | None = None
    repeat_penalty: Annotated[float, Meta(ge=0.1, le=10.0)] | None = None  # llama-server's name
    repeat_last_n: Limit | None = None  # llama-server's name; tokens that the penalty covers; 0 turns all penalties off
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: LogitBias | None = None
    samplers: list[Sampler] | None = None  # llama-server's name; the others are off
    stop: Stop | None = None
    n_predict: Limit | None = None  # llama-server's name
    grammar: str | None = None  # GBNF
    json_schema: dict[str, Any] | None = None
    document: Annotated[str, Meta(max_length=4096)] | None = None  # a newer request with this id cancels this one
    timings_per_token: bool | None = None  # llama-server's name; True: timings in every event
    return_progress: bool | None = None  # llama-server's name; True: events report the progress of the prefill


class OpenAIFields(SamplingFields, kw_only=True):
    """Fields that /v1/chat/completions and /v1/completions share."""

    max_tokens: Limit | None = None
    n: Annotated[int, Meta(ge=1, le=16)] | None = None
    stream_options: dict[str, bool | None] | None = None
    steps: bool | None = None  # whether events report drafter, counts and tokens of each step


class TextPart(Struct):
    """Part of a message's content."""

    type: str
    text: str | None = None
    refusal: str | None = None


class CalledFunction(Struct):
    """Name and JSON arguments of a tool call."""

    name: str
    arguments: str = "{}"


class ToolCall(Struct):
    """Tool call of an earlier answer."""

    function: CalledFunction
    id: str = ""


class ToolFunction(Struct, omit_defaults=True):
    """Tool; `parameters`: JSON schema of its arguments."""

    name: Annotated[str, Meta(pattern=r"^[\w.-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(Struct):
    """Tool; only the type "function" is supported."""

    type: Literal["function"]
    function: ToolFunction


class NamedTool(Struct, tag="function"):
    """Name of a tool. As `tool_choice`, it means that this tool must be called."""

    function: CalledFunction


class AllowedTools(Struct):
    """Tools that may be called, or of which one must be called."""

    mode: Literal["auto", "required"]
    tools: list[NamedTool]


class AllowedChoice(Struct, tag="allowed_tools"):
    """Subset of tools that may be called. The prompt still describes all tools, so that cached prefixes stay valid."""

    allowed_tools: AllowedTools


class ChatMessage(Struct):
    """Message of a conversation."""

    role: str
    content: str | list[TextPart] | UnsetType | None = UNSET
    reasoning_content: str | None = None  # reasoning before the content
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


class JsonSchema(Struct):
    """JSON schema of an answer; its name is ignored."""

    schema: dict[str, Any] | None = None


class ResponseFormat(Struct, omit_defaults=True):
    """Required form of an answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema: dict[str, Any] | None = None  # llama-server and other APIs put the schema here
    name: str | None = None


class Prediction(Struct):
    """Text that most of the answer is expected to repeat."""

    type: Literal["content"]
    content: str | list[TextPart]


class ChatRequest(OpenAIFields, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_completion_tokens: Limit | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    prediction: Prediction | None = None
    chat_template_kwargs: dict[str, TemplateValue] | None = None
    reasoning_effort: Effort | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | AllowedChoice | None = None
    parallel_tool_calls: bool | None = None
    reasoning_format: Literal["none", "auto", "deepseek"] | None = None  # llama-server's name
    continue_final_message: bool | None = None
    end_repeats: bool | None = None  # whether to end an answer that repeats itself, see `Repetition`


class CompletionRequest(OpenAIFields, kw_only=True):
    """POST /v1/completions."""

    # msgspec allows one array type in a union; `prompts_of` checks the elements.
    prompt: str | Annotated[list[str | int | list[int]], Meta(min_length=1)]
    suffix: str | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None


class Extra(Struct):
    """Text of another file, or a part of the text."""

    text: str
    filename: str = ""


class NativeRequest(SamplingFields, kw_only=True):
    """Fields that only llama-server's native requests have."""

    response_fields: list[str] | None = None  # the only fields to return
    return_tokens: bool | None = None  # whether the response has the generated ids; streams always have them
    t_max_predict_ms: Annotated[float, Meta(ge=-1.0, le=1e9)] | None = None
    n_indent: Count | None = None  # end the text before a line that is indented less


class InfillRequest(NativeRequest, kw_only=True):
    """POST /infill."""

    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: list[Extra] | None = None
    prompt: str | None = None


class RawRequest(NativeRequest, kw_only=True):
    """POST /completion."""

    prompt: str | Annotated[list[str | int | list[int]], Meta(min_length=1)]


class ContextPart(Struct):
    """Other code for the prompt of a completion; see `ContextPiece`."""

    kind: Literal["definition", "import", "open", "recent", "edit"]
    text: str
    name: str = ""
    weight: Annotated[float, Meta(ge=0.0, le=1e6)] = 1.0


class CompleteRequest(SamplingFields, kw_only=True):
    """POST /complete; docs/api.md describes the fields."""

    path: Annotated[str, Meta(max_length=4096)] = ""
    language: Annotated[str, Meta(max_length=64)] = ""
    prefix: str = ""
    first_line: Count = 0
    middle: str = ""
    closed: Annotated[str, Meta(max_length=64)] = ""
    suffix: str = ""
    context: Annotated[list[ContextPart], Meta(max_length=256)] = field(default_factory=list)
    copies: Annotated[list[str], Meta(max_length=64)] = field(default_factory=list)
    mode: Literal["auto", "line", "lines", "edit"] = "auto"
    max_tokens: Count = 96
    count: Annotated[int, Meta(ge=1, le=8)] = 1
    least_sure: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    explain: bool = False
    stream: bool | None = True


class TokenizeRequest(Struct):
    """POST /tokenize."""

    content: str
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeRequest(Struct):
    """POST /detokenize."""

    tokens: list[Token]


class TemplateRequest(ChatRequest, kw_only=True):
    """POST /apply-template. With `count`, the response is the number of tokens instead of the text."""

    count: bool = False


class LoadRequest(Struct, forbid_unknown_fields=True):
    """POST /load: fields of `Options`, the role, and in `others` the eviction policy for pairs to unload."""

    pair: Annotated[str, Meta(min_length=1, max_length=4096)]
    drafter: Annotated[str, Meta(max_length=4096)] | UnsetType = UNSET
    backend: Backend | UnsetType = UNSET
    threads: Annotated[int, Meta(ge=0, le=4096)] | UnsetType = UNSET
    context: Annotated[int, Meta(ge=0, le=2**31)] | UnsetType = UNSET
    draft: bool | UnsetType = UNSET
    device: Annotated[str, Meta(min_length=1, max_length=256)] | UnsetType = UNSET
    gpu_layers: Annotated[int, Meta(ge=-1, le=2**20)] | UnsetType = UNSET
    rows: RowsMode | UnsetType = UNSET
    drafter_bits: Literal[4, 8] | UnsetType = UNSET
    native_fp4: bool | UnsetType = UNSET
    kv: Literal["auto", "f16", "int8", "k8v4", "fp8"] | UnsetType = UNSET
    role: PairRole | UnsetType = UNSET
    others: EvictionPolicy = "wait"


class ModelRequest(Struct):
    """POST /models/load and /models/unload."""

    model: Annotated[str, Meta(min_length=1, max_length=4096)]


class ListenRequest(Struct, forbid_unknown_fields=True):
    """POST /listen: see `localdflash.server.tcp.TcpPort`."""

    host: Annotated[str, Meta(min_length=1, max_length=256)]
    port: Annotated[int, Meta(ge=0, lt=2**16)]
    hosts: Annotated[list[str], Meta(min_length=1, max_length=256)]
