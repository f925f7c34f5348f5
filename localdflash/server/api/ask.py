"""Turn a request's fields into what the engine runs: sampling, stop strings, grammar, one request for each choice."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from localdflash.base.errors import ContextOverflow
from localdflash.engine.generate import Request
from localdflash.engine.sampling import Constraint
from localdflash.engine.sampling_params import SamplingParams
from localdflash.engine.stats import Stats
from localdflash.loading.load_pair import LoadedPair
from localdflash.server.answers.answer import Prepared, bound
from localdflash.server.api.http_errors import ApiError
from localdflash.server.api.schemas import SamplingFields
from localdflash.text.grammar import Grammars
from localdflash.text.stream import Detokenizer, Ending, Spelling
from localdflash.text.tokenizer import Tokenizer

MakeConstraint = Callable[[], Constraint]
ALL_THE_ROOM = 2**31
_SEEDS = 2**63


@dataclass(frozen=True)
class Ask:
    """Everything that one HTTP request asks to generate: one request for each choice."""

    loaded: LoadedPair
    requests: Sequence[Request]
    stops: tuple[str, ...]
    truncated: bool = False
    urgent: bool = False
    document: str | None = None
    seconds: float = 0.0  # for each choice after its first step; 0 is no limit
    least_indent: int = 0  # of every line but the first; a line with less is not part of the answer
    ending: Callable[[], Ending] | None = None  # makes what ends the text of one choice
    makes_text: Callable[[Tokenizer], Spelling] = Detokenizer

    def spelling(self) -> Spelling:
        """What makes the text of one choice of its ids."""
        return self.makes_text(self.loaded.tokenizer)


def params_of(body: SamplingFields, temperature: float) -> SamplingParams:
    """The sampling parameters; `temperature` is the endpoint's default."""
    penalty = body.repetition_penalty if body.repetition_penalty is not None else body.repeat_penalty
    return SamplingParams(
        temperature=temperature if body.temperature is None else body.temperature,
        top_k=body.top_k or 0,
        top_p=1.0 if body.top_p is None else body.top_p,
        min_p=body.min_p or 0.0,
        repetition_penalty=1.0 if penalty is None else penalty,
        seed=None if body.seed == -1 else body.seed,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logit_bias=tuple(dict(body.logit_bias or ()).items()),
    )


def limit_of(*given: int | None, default: int) -> int:
    """The first limit that is given; -1 means all the room there is."""
    limit = next((limit for limit in given if limit is not None), default)
    return ALL_THE_ROOM if limit < 0 else limit


def stops_of(body: SamplingFields) -> tuple[str, ...]:
    """The request's stop strings."""
    if body.stop == "":
        raise ApiError(400, "stop: an empty stop string would end every answer", param="stop", code="invalid_value")
    return (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())


def constraint_of(body: SamplingFields, grammars: Grammars, *more: tuple[str, MakeConstraint]) -> MakeConstraint | None:
    """A maker of each choice's constraint, if the request asks for one; `more` names other fields that do."""
    asked = list(more)
    if body.json_schema is not None:
        schema = body.json_schema
        asked.append(("json_schema", lambda: grammars.json_schema(schema)))
    if body.grammar:
        text = body.grammar
        asked.append(("grammar", lambda: grammars.gbnf(text)))
    if len(asked) > 1:
        names = " and ".join(name for name, _ in asked)
        raise ApiError(400, f"{names}: only one of them", param=asked[0][0], code="invalid_value")
    return asked[0][1] if asked else None


def choices(
    loaded: LoadedPair,
    prepared: Prepared,
    body: SamplingFields,
    count: int = 1,
    constraint: MakeConstraint | None = None,
    alternatives: int | None = None,
    *,
    param: str = "prompt",
) -> tuple[list[Request], tuple[str, ...]]:
    """The requests of `count` choices, choice i with seed + i, and what ends their text.

    A stop string that spells a special token ends an answer at that token, which has no text. ApiError, which names
    `param`, if the prompt does not fit.
    """
    request, stops, tokenizer = prepared.request, (*prepared.stops, *stops_of(body)), loaded.tokenizer
    if strange := [token for token, _ in request.params.logit_bias if not 0 <= token < tokenizer.vocab_size]:
        told = f"logit_bias: {strange[0]} is no token of this model, which has {tokenizer.vocab_size}"
        raise ApiError(400, told, param="logit_bias", code="invalid_value")
    try:
        bound(request, loaded.context)
    except ContextOverflow as error:
        raise ApiError(400, str(error), param=param, code="context_length_exceeded") from None
    ends = request.ends.union(tokenizer.special(stop) for stop in stops if tokenizer.has_special(stop))
    seed = request.params.seed
    requests = [
        replace(
            request,
            ends=ends,
            params=replace(request.params, seed=None if seed is None else (seed + i) % _SEEDS),
            constraint=constraint() if constraint else request.constraint,
            alternatives=alternatives,
            draft=body.draft is not False,
            stats=Stats(),
        )
        for i in range(count)
    ]
    return requests, stops
