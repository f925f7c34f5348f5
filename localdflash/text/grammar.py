"""Constraints that restrict an answer's tokens, so that the answer is JSON of a schema or fits another grammar.

Markers (see `tokenizer`) are not allowed, except an end token once the text is complete. A terminal of a grammar
matches as much text as it can. Grammars come with requests, so their length, compilation and masks are limited; a
request beyond a limit gets a UsageError.
"""

import json
import re
from collections.abc import Sequence
from itertools import takewhile
from threading import Lock
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from localdflash.base.errors import LocaldflashError, UsageError
from localdflash.text.gbnf import gbnf_to_lark
from localdflash.text.grammar_trial import LIMITS, TooMuchWork, compile_error
from localdflash.text.sanitize import sanitize
from localdflash.text.tokenizer import Tokenizer

MAX_BYTES = 64 * 1024  # longest grammar or JSON schema
# Whitespace between JSON tokens: a space, or a line feed with indentation. Without a limit a model may indent forever.
JSON_BLANKS = r" |\r?\n[ \t]{0,24}"
MAX_FORCED_BYTES = 1024  # longest forced text to tokenise; more takes longer than a decode step


class GrammarConstraint:
    """`Constraint` of one answer. Not thread-safe."""

    renormalizes = False  # tokens are recorded with the probabilities that they have without the constraint

    def __init__(self, vocabulary: LLTokenizer, matcher: LLMatcher, vocab_size: int) -> None:
        self._vocabulary, self._matcher = vocabulary, matcher
        self._ends = frozenset(vocabulary.eos_tokens)
        self._bits = np.zeros((vocab_size + 31) // 32, np.uint32)
        self._size = vocab_size

    def mask(self) -> NDArray[np.bool_]:
        """Return the mask [V] of the tokens that may come next, at least one; UsageError if it takes too much work."""
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        _check_matcher(self._matcher, "grammar")
        bits = np.unpackbits(self._bits.view(np.uint8), count=self._size, bitorder="little")
        return bits.view(np.bool_)

    def advance(self, token: int) -> None:
        """Move past `token`, which the mask allows; UsageError if that takes too much work."""
        self._matcher.consume_token(token)
        _check_matcher(self._matcher, "grammar")

    def count_allowed(self, tokens: Sequence[int]) -> int:
        """Return how many of these tokens may come next, in this order."""
        # `validate_tokens` treats end tokens inconsistently, so an end token after the allowed text is checked here.
        text = list(takewhile(lambda token: token not in self._ends, tokens))
        count = self._matcher.validate_tokens(text)
        is_end_next = count == len(text) and count < len(tokens)
        return count + 1 if is_end_next and self.is_complete_after(text) else count

    def is_complete_after(self, tokens: Sequence[int]) -> bool:
        """Return whether the answer is complete after these tokens, all of which must be allowed next."""
        self._matcher.consume_tokens(list(tokens))
        is_complete = self._matcher.is_accepting()
        self._matcher.rollback(len(tokens))
        return is_complete

    def forced_tokens(self) -> Sequence[int]:
        """Return the tokens of the text that has to come next, or of the beginning of that text; may be empty."""
        text = self._matcher.compute_ff_bytes()
        if len(text) <= MAX_FORCED_BYTES:
            return self._matcher.compute_ff_tokens()
        return self._vocabulary.tokenize_bytes(text[:MAX_FORCED_BYTES])[:-1]  # the last token's text may be cut


class Grammars:
    """Thread-safe factory of constraints for one vocabulary. `vocab_size`: number of logits, at least one a token."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int | None = None) -> None:
        self._tokenizer = tokenizer
        self.vocab_size = vocab_size or tokenizer.vocab_size
        self._vocabulary_lock = Lock()
        self._cached_vocabulary: LLTokenizer | None = None

    def json_schema(self, schema: dict[str, Any]) -> GrammarConstraint:
        """Return a constraint to JSON that this schema admits."""
        if not isinstance(schema, dict):
            raise UsageError(f"JSON schema: not an object (got {type(schema).__name__}); send a JSON object")
        try:
            text = json.dumps(schema, allow_nan=False, ensure_ascii=False)
            _check_size("JSON schema", text)
            grammar = LLMatcher.grammar_from_json_schema(text, defaults={"whitespace_pattern": JSON_BLANKS})
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"JSON schema: {_short_error(str(error))}") from error
        return self._constraint("JSON schema", grammar)

    def json_object(self) -> GrammarConstraint:
        """Return a constraint to any JSON object."""
        return self.json_schema({"type": "object"})

    def lark(self, text: str) -> GrammarConstraint:
        """Return a constraint to a grammar in llguidance's dialect of Lark."""
        _check_size("Lark grammar", text)
        return self._constraint("Lark grammar", LLMatcher.grammar_from_lark(text))

    def gbnf(self, text: str) -> GrammarConstraint:
        """Return a constraint to a grammar in llama.cpp's language."""
        _check_size("GBNF grammar", text)
        try:
            lark = gbnf_to_lark(text)
        except ValueError as error:
            raise UsageError(f"GBNF grammar: {_short_error(str(error))}") from error
        return self._constraint("GBNF grammar", LLMatcher.grammar_from_lark(lark))

    def _constraint(self, kind: str, grammar: str) -> GrammarConstraint:
        try:
            reason = compile_error(grammar)
        except TooMuchWork:
            raise UsageError(f"{kind}: takes too much work to compile; send a simpler one") from None
        except OSError as error:
            raise LocaldflashError(
                f"{kind}: the process that compiles it failed ({_short_error(str(error))}); run `localdflash doctor`"
            ) from error
        if reason:
            raise UsageError(f"{kind}: {_short_error(reason)}")
        vocabulary = self._vocabulary()
        matcher = LLMatcher(vocabulary, grammar, log_level=0, limits=LIMITS)
        _check_matcher(matcher, kind)
        return GrammarConstraint(vocabulary, matcher, self.vocab_size)

    def _vocabulary(self) -> LLTokenizer:
        with self._vocabulary_lock:
            if self._cached_vocabulary is None:
                wrapper = TokenizerWrapper(_GuidanceVocabulary(self._tokenizer, self.vocab_size))
                self._cached_vocabulary = LLTokenizer(wrapper, eos_token=sorted(self._tokenizer.ends))
            return self._cached_vocabulary


class _GuidanceVocabulary:
    """Adapter of a `Tokenizer` to the interface of `TokenizerWrapper`."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        if not tokenizer.ends:
            raise UsageError("grammar: the model has no end token; choose another model")
        self._tokenizer = tokenizer
        self.eos_token_id = min(tokenizer.ends)
        self.special_token_ids = sorted(tokenizer.markers | tokenizer.ends)
        padding = vocab_size - tokenizer.vocab_size
        self.tokens = [tokenizer.piece(token, special=True) for token in range(tokenizer.vocab_size)]
        self.tokens += [b""] * padding  # logits without a token are never allowed

    def __call__(self, text: bytes) -> list[int]:
        return self._tokenizer.encode(text.decode(), continues=True)  # no space is added before the text


def _check_size(kind: str, text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise UsageError(f"{kind}: half of a surrogate pair at character {error.start}; send valid Unicode") from error
    if size > MAX_BYTES:
        raise UsageError(f"{kind}: too long (expected at most {MAX_BYTES} bytes, got {size}); send a shorter one")


def _check_matcher(matcher: LLMatcher, kind: str) -> None:
    if matcher.is_error():
        raise UsageError(f"{kind}: {_short_error(matcher.get_error())}")


def _short_error(message: str) -> str:
    """Return an error message on one short line, without the source excerpt in llguidance's regex errors."""
    if message.startswith("NoExtension"):
        return "no text can satisfy it"
    if error := re.search(r"^error: (.+)", message, re.MULTILINE):
        message = error[1]
    line = sanitize(" ".join(message.replace("<non-verbose/>", "").split()))
    return line if len(line) <= 200 else line[:200] + "…"
