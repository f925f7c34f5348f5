"""A completion as an API request has it: after a prompt as it stands, or between two texts, to the model's own end.

What an editor shows is made by `fill` instead: a prompt that fits and stays cached from key to key, healing of words
that were begun, an end by syntax.
"""

from collections.abc import Sequence

from localdflash.base.errors import UsageError
from localdflash.code.fim.infill_plan import InfillPlan
from localdflash.engine.generate import Request
from localdflash.engine.pair import Cancelled, never_cancelled
from localdflash.engine.sampling_params import SamplingParams
from localdflash.loading.load_pair import LoadedPair
from localdflash.server.answers.answer import Answer, Prepared
from localdflash.text.fim import build, stop_ids


def complete(
    loaded: LoadedPair,
    prefix: str,
    suffix: str,
    max_tokens: int,
    params: SamplingParams,
    *,
    cancelled: Cancelled = never_cancelled,
) -> Answer:
    """Return a completion between prefix and suffix, not started yet; see `prepare`."""
    return Answer(loaded, prepare(loaded, prefix, suffix, max_tokens, params, cancelled=cancelled))


def prepare(
    loaded: LoadedPair,
    prefix: str,
    suffix: str,
    max_tokens: int,
    params: SamplingParams,
    *,
    cancelled: Cancelled = never_cancelled,
) -> Prepared:
    """The request of the text between prefix and suffix. Their lines end with a line feed alone, as in training."""
    form, tokenizer = loaded.fim_format(), loaded.tokenizer
    ids = build(form, tokenizer, prefix.replace("\r\n", "\n"), suffix.replace("\r\n", "\n"))
    return Prepared(Request(ids, max_tokens, params, stop_ids(form, tokenizer), cancelled), form.stop_strings)


def prepare_text(loaded: LoadedPair, prompt: str | Sequence[int], max_tokens: int, params: SamplingParams) -> Prepared:
    """Return the request that continues a prompt as it stands; text that spells a marker becomes one.

    UsageError if there is nothing to continue, or an id is not a token of the model.
    """
    tokenizer = loaded.tokenizer
    if isinstance(prompt, str):
        parts = tokenizer.split_markers(prompt)
        ids = [token for part in parts for token in (tokenizer.encode(part) if isinstance(part, str) else [part])]
        bos = tokenizer.bos()
        if bos is not None and ids[:1] != [bos]:
            ids.insert(0, bos)
    else:
        ids = list(prompt)
        if strange := [token for token in ids if not 0 <= token < tokenizer.vocab_size]:
            raise UsageError(f"prompt: {strange[0]} is no token of this model, which has {tokenizer.vocab_size}")
    if not ids:
        raise UsageError("prompt: it is empty, there is nothing to go on from")
    return Prepared(Request(ids, max_tokens, params, tokenizer.ends))


def prepare_filling(filling: InfillPlan) -> Prepared:
    """Return the likeliest completion of a filling as a prepared request."""
    return Prepared(filling.requests[0], filling.stops, filling.ending, filling.prompt.truncated)
