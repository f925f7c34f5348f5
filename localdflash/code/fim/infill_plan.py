"""Turn a cursor position into engine requests for one loaded pair: the prompt, the start of the answer, and its end."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

from localdflash.base.errors import ContextOverflow
from localdflash.code.context.context import ContextPiece
from localdflash.code.fim.choices import DistinctStart
from localdflash.code.fim.encoder import Encoder
from localdflash.code.fim.extent import Mode
from localdflash.code.fim.healing import Healing, Spellings, unfinished_word
from localdflash.code.fim.presentable import PresentableEnding, plan_ending
from localdflash.code.fim.prompt import MAX_PROMPT_TOKENS, Gap, InfillPrompt, assemble
from localdflash.engine.generate import Request
from localdflash.engine.sampling_params import SamplingParams
from localdflash.loading.load_pair import LoadedPair
from localdflash.text.fim_formats import check_cursor, stop_ids

MAX_DRAFT_TOKENS = 1024  # of texts for lookup drafts; each token costs some microseconds when they change
SPARE_REQUESTS = 3  # in place of answers that are empty
VARIED_TEMPERATURE = 0.8  # of further choices whose first tokens cannot be kept distinct
WAIT_SECONDS = 0.1  # that an automatic completion waits for the token spellings


@dataclass(frozen=True)
class InfillPlan:
    """Completions of one position. Requests beyond the requested number replace empty answers."""

    prompt: InfillPrompt
    requests: Sequence[Request]
    stops: tuple[str, ...]
    word: str  # before the cursor; every answer begins with it
    ending: Callable[[], PresentableEnding]  # makes the `Ending` for the text of one answer


class InfillPlanner:
    """Plans completions for one pair; ModelError if it was not trained for infilling. Thread-safe.

    An automatic completion waits `patience` seconds for the token spellings, without which no word is healed.
    """

    def __init__(self, loaded: LoadedPair, patience: float | None = WAIT_SECONDS) -> None:
        self._context, self._form, self._patience = loaded.context, loaded.fim_format(), patience
        self._encoder = Encoder(loaded.tokenizer)
        self._ends = stop_ids(self._form, loaded.tokenizer)
        thread = ThreadPoolExecutor(1, "spellings")
        self._spellings = thread.submit(Spellings, loaded.tokenizer, loaded.vocab_size)
        loaded.before_close(thread.shutdown)

    def fill(
        self,
        gap: Gap,
        others: Sequence[ContextPiece] = (),
        copies: Sequence[str] = (),
        *,
        mode: Mode = "auto",
        max_tokens: int,
        params: SamplingParams,
        count: int = 1,
        min_probability: float = 0.0,
        most: int = MAX_PROMPT_TOKENS,
        heals: bool = True,
    ) -> InfillPlan:
        """Plan completions of a gap, each with a different start. `copies` are likely texts for lookup drafts.

        `min_probability`: see `Stopping`; 0 if the user requested the completions. Without `heals` an answer begins at
        the cursor, even within a word.
        """
        check_cursor(self._form, gap.suffix)
        is_requested = heals and min_probability == 0
        patience = None if is_requested and max_tokens else self._patience
        spellings = self._spellings.result() if heals and wait([self._spellings], patience).done else None
        word = unfinished_word((gap.prefix + gap.middle).rpartition("\n")[2]) if spellings else ""
        gap, ending = plan_ending(gap, others, mode, min_probability, word, adds_blanks=heals)
        gap, context, most = gap.without(word), self._context, min(most, self._form.max_prompt_tokens)
        prompt = assemble(self._encoder, self._form, context, gap, others, max_tokens, word, most)
        if len(prompt.ids) >= context:
            raise ContextOverflow(f"a context of {context} tokens is too short to complete code in")
        documents = self._documents(prompt, copies)
        first = Request(prompt.ids, prompt.max_tokens, params, self._ends, top_logprobs=0, documents=documents)
        taken = {*self._ends}  # tokens that no answer begins with; each answer adds its own
        requests = []
        spare = SPARE_REQUESTS if is_requested and spellings and max_tokens else 0
        for number in range(count + spare):
            healing = Healing(spellings, word) if spellings and word else None
            differs = DistinctStart(healing, spellings.size, taken) if spellings and is_requested else healing
            drawn = params if is_requested and spellings else _varied(params, number)
            requests.append(replace(first, params=drawn, constraint=differs, stats=type(first.stats)()))
        return InfillPlan(prompt, requests, self._form.stop_strings, word, ending)

    def _documents(self, prompt: InfillPrompt, copies: Sequence[str]) -> list[list[int]]:
        """Return texts for lookup drafts, likeliest last. Texts in the prompt are looked up anyway."""
        omitted = [part.text for part in prompt.parts if part.left_out]
        documents: list[list[int]] = []
        room = MAX_DRAFT_TOKENS
        for text in (*copies, *omitted):
            ids = self._encoder.text(text[: room * 8].replace("\r\n", "\n"))[:room]
            if ids:
                documents.insert(0, ids)
                room -= len(ids)
        return documents


def _varied(params: SamplingParams, number: int) -> SamplingParams:
    """Return how to sample further choices if their first tokens cannot be kept distinct."""
    if not number:
        return params
    seed = ((params.seed or 0) + number) % 2**63
    return replace(params, temperature=max(params.temperature, VARIED_TEMPERATURE), seed=seed)
