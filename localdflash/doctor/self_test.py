"""The last check: complete once with drafts and once without; the texts must be the same."""

from dataclasses import replace

from localdflash.doctor.check import Check

TOKENS = 64
PREFIX = 'def add(first, second):\n    """Return the sum of two numbers."""\n    '


def self_test(name: str) -> Check:
    """Run the embedded pair; its tokens per verify are remembered for `models plan`."""
    from localdflash.backend.options import Options
    from localdflash.engine.generate import Request, generate
    from localdflash.loading.load import LoadedPair
    from localdflash.machine import measurements
    from localdflash.text.fim import build

    options = Options(backend="auto", threads=1)  # so small a model gains nothing from more, which wait for each other
    with LoadedPair(options) as loaded, LoadedPair(replace(options, draft=False)) as plain_pair:
        ids = build(loaded.fim_format(), loaded.tokenizer, PREFIX, "\n")
        drafted, plain = Request(ids, TOKENS), Request(ids, TOKENS)
        with_drafts = [token for step in generate(loaded.pair, drafted) for token in step.tokens]
        without = [token for step in generate(plain_pair.pair, plain) for token in step.tokens]
    stats = drafted.stats
    detail = (
        f"{loaded.backend}: {stats.tokens} tokens, {stats.tokens_per_second:.0f} a second, {stats.tau:.2f} per verify"
    )
    if with_drafts != without:
        return Check(name, "failed", f"{detail}; drafting changed the text", "report this with `doctor --json`")
    measurements.remember(f"tau of {options.pair}", stats.tau, f"doctor's self-test of {TOKENS} tokens")
    return Check(name, "ok", f"{detail}, identical to plain decoding")
