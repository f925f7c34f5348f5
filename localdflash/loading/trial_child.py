"""Child process of a trial load, see `trial`; a separate module, since `load_pair` imports `trial`."""

from localdflash.base.errors import LocaldflashError
from localdflash.engine.generate import Request, generate
from localdflash.loading import child
from localdflash.loading.load_pair import LoadedPair

GENERATED_TOKENS = 4
PROMPT = "def add(a, b):\n    return a + b\n\n\ndef mul(a, b):\n    return"
_UP_TO_3_BYTES = (*range(1, 0xC0), *range(0xC0, 0x800, 0x40), 0x800, *range(0x1000, 0x10000, 0x1000))
ALL_UTF8_BYTES = "".join(map(chr, (*_UP_TO_3_BYTES, 0x10000, *range(0x40000, 0x110000, 0x40000))))


def main() -> None:
    """Load the pair of the options in the first argument, exercise tokenizer and decode loop, report the result."""
    options, report = child.begin()
    try:
        with LoadedPair(options, skip_trial=True) as loaded:
            tokenizer = loaded.tokenizer
            tokenizer.encode(ALL_UTF8_BYTES)
            for token in range(tokenizer.vocab_size):
                tokenizer.piece(token)
            ids = tokenizer.encode(PROMPT)[: max(loaded.context // 2, 1)]
            for _ in generate(loaded.pair, Request(ids, GENERATED_TOKENS)):
                pass
        report(kind="")
    except LocaldflashError as error:
        report(kind=type(error).__name__, reason=str(error))
