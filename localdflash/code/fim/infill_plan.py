"""Plan the completions of a cursor position for one loaded pair: prompt, constraints on the start, stopping rule."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

from localdflash.base.errors import ContextOverflow
from localdflash.code.context.context import ContextPiece
from localdflash.code.fim.choices import DistinctStart
from localdflash.code.fim.encoder import Encoder
from localdflash.code.fim.endings import plan_ending
from localdflash.code.fim.extent import Mode
from localdflash.code.fim.healing import Healing, Spellings, unfinished_word
from localdflash.code.fim.presentable import PresentableEnding
from localdflash.code.fim.prompt import MAX_PROMPT_TOKENS, Gap, InfillPrompt, assemble
from localdflash.engine.generate import Request
from localdflash.engine.sampling_params import SamplingParams
from localdflash.loading.load_pair import LoadedPair
from localdflash.text.fim_formats import check_suffix, stop_ids

MAX_DRAFT_TOKENS = 1024  # total length of the texts for lookup drafts; indexing costs microseconds per token
SPARE_REQUESTS = 3  # planned in addition, to replace empty answers
VARIED_TEMPERATURE = 0.8  # minimum for further choices if their first tokens cannot be kept distinct
WAIT_SECONDS = 0.1  # how long an automatic completion waits for `Spellings`


@dataclass(frozen=True)
class InfillPlan:
    """Engine requests for one cursor position. Those beyond the requested number replace empty answers.

    `best`: one answer is wanted, that of the highest score: with greedy decoding, it often is not the first.
    """

    prompt: InfillPrompt
    requests: Sequence[Request]
    stops: tuple[str, ...]
    word: str  # unfinished word before the cursor; every answer begins with it
    ending: Callable[[], PresentableEnding]  # makes the `Ending` for the text of one answer
    best: bool


class InfillPlanner:
    """Planner for one pair; ModelError if the target was not trained for infilling. Thread-safe.

    `patience`: seconds to wait for `Spellings`, which a thread builds; then completions go without token healing.
    """

    def __init__(self, loaded: LoadedPair, patience: float | None = WAIT_SECONDS) -> None:
        self._context, self._format, self._patience = loaded.context, loaded.fim_format(), patience
        self._encoder = Encoder(loaded.tokenizer)
        self._ends = stop_ids(self._format, loaded.tokenizer)
        thread = ThreadPoolExecutor(1, "spellings")
        self._spellings = thread.submit(Spellings, loaded.tokenizer, loaded.vocab_size)
        loaded.before_close(thread.shutdown)

    def plan(
        self,
        gap: Gap,
        others: Sequence[ContextPiece] = (),
        lookup_texts: Sequence[str] = (),
        *,
        mode: Mode = "auto",
        max_tokens: int,
        params: SamplingParams,
        count: int = 1,
        min_probability: float = 0.0,
        max_prompt_tokens: int = MAX_PROMPT_TOKENS,
        heals: bool = True,
    ) -> InfillPlan:
        """Plan `count` completions of a gap, each with a different first token if the user requested them.

        `lookup_texts`: texts that the completion may repeat, for lookup drafts. `min_probability`: see `Stopping`; 0 if
        the user requested the completions. `heals`: whether to generate the unfinished word before the cursor again.
        """
        check_suffix(self._format, gap.suffix)
        is_requested = heals and min_probability == 0
        patience = None if is_requested and max_tokens else self._patience
        spellings = self._spellings.result() if heals and wait([self._spellings], patience).done else None
        word = unfinished_word((gap.prefix + gap.middle).rpartition("\n")[2]) if spellings else ""
        if mode == "auto" and min_probability == 0 and self._format.markers:
            mode = "open"
        gap, ending = plan_ending(gap, others, mode, min_probability, word, adds_blanks=heals)
        gap, context = gap.without(word), self._context
        limit = min(max_prompt_tokens, self._format.max_prompt_tokens)
        prompt = assemble(self._encoder, self._format, context, gap, others, max_tokens, word, limit)
        if len(prompt.ids) >= context:
            raise ContextOverflow(f"a context of {context} tokens is too short to complete code in")
        documents = self._documents(prompt, lookup_texts)
        first = Request(prompt.ids, prompt.max_tokens, params, self._ends, top_logprobs=0, documents=documents)
        first_tokens = {*self._ends}  # tokens that no answer may begin with; each answer adds its first token
        requests = []
        spare = SPARE_REQUESTS if is_requested and spellings and max_tokens else 0
        for number in range(count + spare):
            healing = Healing(spellings, word) if spellings and word else None
            constraint = DistinctStart(healing, spellings.size, first_tokens) if spellings and is_requested else healing
            sampling = params if is_requested and spellings else _varied(params, number)
            requests.append(replace(first, params=sampling, constraint=constraint, stats=type(first.stats)()))
        best = spare > 0 and count == 1 and params.temperature == 0
        return InfillPlan(prompt, requests, self._format.stop_strings, word, ending, best)

    def _documents(self, prompt: InfillPrompt, lookup_texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of texts for lookup drafts, likeliest last. Lookup searches the prompt itself in any case."""
        omitted = [part.text for part in prompt.parts if part.left_out]
        documents: list[list[int]] = []
        room = MAX_DRAFT_TOKENS
        for text in (*lookup_texts, *omitted):
            ids = self._encoder.text(text[: room * 8].replace("\r\n", "\n"))[:room]
            if ids:
                documents.insert(0, ids)
                room -= len(ids)
        return documents


def _varied(params: SamplingParams, number: int) -> SamplingParams:
    """Return sampling parameters for choice `number`, from 0: a different seed and a minimum temperature after 0."""
    if not number:
        return params
    seed = ((params.seed or 0) + number) % 2**63
    return replace(params, temperature=max(params.temperature, VARIED_TEMPERATURE), seed=seed)
