"""Vocabularies of every kind that llama.cpp supports, read and encoded by llama.cpp."""

import ctypes
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

import llama_cpp.llama_cpp as api

from localdflash.backends.llamacpp.llama_library import load_model, metadata
from localdflash.base.errors import ModelError
from localdflash.text.vocabulary import SpecialToken

_SPECIAL = api.LLAMA_TOKEN_ATTR_CONTROL | api.LLAMA_TOKEN_ATTR_USER_DEFINED | api.LLAMA_TOKEN_ATTR_UNKNOWN


class LlamaVocabulary:
    """`ModelVocabulary` of a GGUF file that llama.cpp has opened without its weights."""

    def __init__(self, path: Path) -> None:
        self._model = load_model(path, vocab_only=True)
        weakref.finalize(self, api.llama_model_free, self._model)
        self._vocab = api.llama_model_get_vocab(self._model)
        if api.llama_vocab_type(self._vocab) == api.LLAMA_VOCAB_TYPE_NONE:
            raise ModelError(f"{path}: no vocabulary (tokenizer.ggml.model); convert the model again")
        self.size: int = api.llama_vocab_n_tokens(self._vocab)
        self.bos_id: int = api.llama_vocab_bos(self._vocab)
        self.eos_id: int = api.llama_vocab_eos(self._vocab)
        self.adds_bos = bool(api.llama_vocab_get_add_bos(self._vocab))
        self.special_tokens: Sequence[SpecialToken] = tuple(self._special_tokens())
        named = (self.eos_id, api.llama_vocab_eot(self._vocab))  # the file may list these as ordinary text
        candidates = {*named, *(token.id for token in self.special_tokens)}
        self.end_ids = frozenset(token for token in candidates if api.llama_vocab_is_eog(self._vocab, token))

    def metadata(self, key: str) -> str | None:
        """See `ModelVocabulary`."""
        return metadata(self._model, key)

    def encode(self, text: str) -> list[int]:
        """See `ModelVocabulary`."""
        data = text.encode()
        capacity = len(data) + 8  # byte fallback gives at most one id per byte, plus a leading space
        buffer = (api.llama_token * capacity)()
        count = api.llama_tokenize(self._vocab, data, len(data), buffer, capacity, False, False)
        if count < 0:
            raise ModelError(f"vocabulary: llama.cpp makes {-count} tokens of {len(data)} bytes of text")
        return list(buffer[:count])

    def decode_token(self, token: int, *, special: bool) -> bytes:
        """See `ModelVocabulary`."""
        buffer = ctypes.create_string_buffer(32)
        count = api.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, special)
        if count < 0:  # the negated size that the text needs
            buffer = ctypes.create_string_buffer(-count)
            count = api.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, special)
        return buffer.raw[:count]

    def _special_tokens(self) -> Iterator[SpecialToken]:
        for token in range(self.size):
            flags = api.llama_vocab_get_attr(self._vocab, token)
            if flags & _SPECIAL and (text := api.llama_vocab_get_text(self._vocab, token)):
                yield SpecialToken(
                    token,
                    text.decode("utf-8", "replace"),
                    is_control=bool(flags & api.LLAMA_TOKEN_ATTR_CONTROL),
                    is_user_defined=bool(flags & api.LLAMA_TOKEN_ATTR_USER_DEFINED),
                    strips_before=bool(flags & api.LLAMA_TOKEN_ATTR_LSTRIP),
                    strips_after=bool(flags & api.LLAMA_TOKEN_ATTR_RSTRIP),
                )
