"""Self-tests: generate a text with and without drafting; both texts must be identical."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from localdflash.cli.doctor.check import Finding

if TYPE_CHECKING:
    from localdflash.loading.load_pair import LoadedPair
    from localdflash.models.config import Config
    from localdflash.models.load_options import Options

TOKENS = 64
INEXACT = ("fast", "not certified")  # `LoadedPair.width_status` starts so if batch widths are not bit-exact
PREFIX = 'def add(first, second):\n    """Return the sum of two numbers."""\n    '
QUESTION = "Write a Python function that returns the sum of two numbers."


def embedded_pair(name: str) -> Finding:
    """Complete with the embedded pair, on one thread: so small a model does not get faster with more threads."""
    from localdflash.models.load_options import Options

    return _compare(name, Options(backend="auto", threads=1), _infill_prompt)


def chat_pair(name: str) -> Finding:
    """Answer a question with the chat pair, unless it is the embedded pair."""
    from localdflash.models.config import load_config
    from localdflash.models.load_options import Options
    from localdflash.models.registry import defaults
    from localdflash.server.api.chat_request import render_chat
    from localdflash.text.chat_template import TemplateMessage

    config = load_config()
    pair = defaults.chat_pair(config)
    if pair == Options().pair:
        missing = next((entry for entry in defaults.missing_default_pairs(config) if entry.id == defaults.CHAT), None)
        remedy = f"run `localdflash models pull {missing.id}`: {missing.description}" if missing else ""
        return Finding(name, "ok", f"{pair}, as above", remedy)
    messages = [TemplateMessage("user", QUESTION)]
    return _compare(name, _configured(config, pair), lambda loaded: render_chat(loaded, messages).encode())


def completion_pair(name: str) -> Finding:
    """Complete with the completion pair, unless it is the embedded pair."""
    from localdflash.loading.completion_support import require_completion
    from localdflash.models.config import load_config
    from localdflash.models.load_options import Options
    from localdflash.models.registry import defaults

    config = load_config()
    pair = defaults.completion_pair(config)
    if pair == Options().pair:
        return Finding(name, "ok", f"{pair}, as above")
    require_completion(pair)
    return _compare(name, _configured(config, pair), _infill_prompt)


def _configured(config: "Config", pair: str) -> "Options":
    from localdflash.models.load_options import Options

    return Options(**asdict(config.model) | {"pair": pair})


def _infill_prompt(loaded: "LoadedPair") -> list[int]:
    from localdflash.text.fim_formats import build

    if loaded.edit_format():
        return loaded.tokenizer.encode(PREFIX)
    return build(loaded.fim_format(), loaded.tokenizer, PREFIX, "\n")


def _compare(name: str, options: "Options", prompt: "Callable[[LoadedPair], Sequence[int]]") -> Finding:
    """Compare the texts with and without drafting; store the tokens per verify step for `models plan`."""
    from localdflash.base.machine import measurements
    from localdflash.engine.generate import Request, generate
    from localdflash.loading.load_pair import LoadedPair

    with LoadedPair(options) as loaded:
        ids, width_status = prompt(loaded), loaded.width_status
        drafted, baseline = Request(ids, TOKENS), Request(ids, TOKENS, draft=False)
        with_drafts, without = (
            [token for step in generate(loaded.pair, one) for token in step.tokens] for one in (drafted, baseline)
        )
    stats = drafted.stats
    speed = f"{stats.tokens} tokens, {stats.tokens_per_second:.0f} tok/s, {stats.tau:.2f} tokens per verify step"
    detail = f"{options.pair} on {loaded.backend}: {speed}"
    if with_drafts != without and width_status.startswith(INEXACT):
        return Finding(name, "ok", f"{detail}; {width_status}")
    if with_drafts != without:
        return Finding(name, "failed", f"{detail}; drafting changed the output", "report this with `doctor --json`")
    measurements.remember(f"tau of {options.pair}", stats.tau, f"doctor's self-test of {TOKENS} tokens")
    return Finding(name, "ok", f"{detail}, identical to autoregressive decoding")
