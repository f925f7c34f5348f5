"""Turn text into token ids and back, with llama.cpp's vocabulary of a GGUF file.

Two kinds of text meet in a prompt and are kept apart here. `encode` takes user text (messages, source code): whatever
it spells, the result holds no marker. `split_markers` takes text that we or the model's author wrote (a chat template):
only there do spellings such as `<|im_start|>` become marker ids.

A *marker* is a control token, or a user-defined token spelled in brackets (`<tool_call>`, `[PAD7]`) unless it is a
plain HTML tag that the model's chat template does not use: Gemma has those as ordinary words. llama.cpp parses
user-defined tokens even in plain text, and SentencePiece merges may arrive at a control token; `encode` breaks such a
spelling after its first character. Other user-defined tokens (runs of blanks) are ordinary text.

Long text is tokenised in stretches of at most 4 096 characters, cut between two words: there every pre-tokenizer cuts
too, so ids do not change. Only a stretch without such a place is cut anywhere. Several of llama.cpp's
pre-tokenizers recurse once per character and end the process on a longer run.

Ids of a longer text need not start with the ids of a shorter one: byte-pair merges may change the last ids when text
is appended.
"""

import ctypes
import re
import weakref
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import llama_cpp.llama_cpp as api

from localdflash.backends.llamacpp.llama_library import load_model, metadata
from localdflash.base.errors import ModelError

STRETCH = 4096  # characters; a run of 20 000 letters overflows an 8 MiB stack
_BETWEEN_WORDS = re.compile(r"(?<=[A-Za-z])(?= [A-Za-z])")
_SPECIAL = api.LLAMA_TOKEN_ATTR_CONTROL | api.LLAMA_TOKEN_ATTR_USER_DEFINED | api.LLAMA_TOKEN_ATTR_UNKNOWN
_BRACKETED = re.compile(r"<.+>|\[.+\]", re.DOTALL)
_HTML_TAG = re.compile(r"</?[a-z][a-z0-9]*>")
_C_SPACE = r"[ \t\n\v\f\r]*"


class Tokenizer:
    """The vocabulary of one model. Immutable after construction, safe to use from several threads."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._vocab = api.llama_model_get_vocab(model)
        self.vocab_size: int = api.llama_vocab_n_tokens(self._vocab)
        self._pieces: dict[tuple[int, bool], bytes] = {}
        special = list(self._special_tokens())
        self._special = {text: token for token, text, _ in special}
        template = self.chat_template() or ""
        self._markers = {text: token for token, text, attributes in special if _is_marker(text, attributes, template)}
        self.markers = frozenset(self._markers.values())  # the ids of all markers
        self._marker_pattern = self._template_pattern()
        self._marker_starts = re.compile(f"(?={'|'.join(map(_spelled, self._markers)) or '(?!)'})")
        self.ends = self._find_ends(token for token, _, _ in special)  # the ids that end an answer
        line_break = self._tokenize("\n")
        self._line_break = line_break if self.spell(line_break).startswith(b" ") else []

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read only the vocabulary of a GGUF file; ModelError if the file is damaged or llama.cpp refuses it."""
        model = load_model(path, vocab_only=True)
        if api.llama_vocab_type(api.llama_model_get_vocab(model)) == api.LLAMA_VOCAB_TYPE_NONE:
            api.llama_model_free(model)
            raise ModelError(f"{path}: it has no vocabulary (tokenizer.ggml.model): convert the model again")
        tokenizer = cls(model)
        weakref.finalize(tokenizer, api.llama_model_free, model)
        return tokenizer

    def encode(self, text: str, *, continues: bool = False) -> list[int]:
        """Ids of user text: no BOS, no marker whatever the text spells; a lone surrogate counts as U+FFFD.

        SentencePiece vocabularies put a space before text; `continues` says that the text follows other text and
        leaves that space out.
        """
        ids: list[int] = []
        for stretch in _stretches(_valid(text)):
            ids += self._encode_stretch(stretch, continues)
            continues = True
        return ids

    def split_markers(self, text: str) -> list[str | int]:
        """Cut trusted text at its markers: the text between them, and the ids of the markers, in order."""
        parts: list[str | int] = []
        end = 0
        for found in self._marker_pattern.finditer(text):
            parts += [text[end : found.start()], self._markers[found[found.lastindex or 0]]]
            end = found.end()
        return [part for part in (*parts, text[end:]) if part != ""]

    def special(self, spelling: str) -> int:
        """The id of the one special token with this spelling; ModelError if the vocabulary has none."""
        try:
            return self._special[spelling]
        except KeyError:
            raise ModelError(
                f"vocabulary: {spelling!r} is not a single special token of this model; choose a model trained with it"
            ) from None

    @property
    def specials(self) -> Mapping[str, int]:
        """Every special token: its spelling and its id."""
        return MappingProxyType(self._special)

    def has_special(self, spelling: str) -> bool:
        """Whether `special` knows this spelling."""
        return spelling in self._special

    def bos(self) -> int | None:
        """The id that the model wants in front of every prompt, if any."""
        return int(api.llama_vocab_bos(self._vocab)) if api.llama_vocab_get_add_bos(self._vocab) else None

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes of one id, perhaps a part of a character. Control tokens are empty unless `special` asks."""
        key = (token, special)
        if key not in self._pieces:
            self._pieces[key] = self._read_piece(token, special)
        return self._pieces[key]

    def spell(self, ids: Iterable[int]) -> bytes:
        """The bytes of a sequence of ids, control tokens left out."""
        return b"".join(map(self.piece, ids))

    def metadata(self, key: str) -> str | None:
        """A value of the model file's metadata as text, if it is there."""
        return metadata(self._model, key)

    def chat_template(self) -> str | None:
        """The Jinja source of the model's chat template, if it has one."""
        return self.metadata("tokenizer.chat_template")

    def template_tokens(self) -> dict[str, str]:
        """The values of `bos_token` and `eos_token` for a chat template."""
        ids = {"bos_token": api.llama_vocab_bos(self._vocab), "eos_token": api.llama_vocab_eos(self._vocab)}
        return {
            name: self.piece(token, special=True).decode("utf-8", "replace") if token >= 0 else ""
            for name, token in ids.items()
        }

    def _encode_stretch(self, text: str, continues: bool) -> list[int]:
        ids = self._tokenize(text, continues)
        if self.markers.isdisjoint(ids):
            return ids
        cuts = [0, *(found.start() + 1 for found in self._marker_starts.finditer(text)), len(text)]
        parts = [text[start:end] for start, end in pairwise(cuts) if start < end]
        if len(parts) == 1:  # no spelling to break: not seen with any vocabulary, yet the promise holds
            return [token for token in ids if token not in self.markers]
        return [
            token for number, part in enumerate(parts) for token in self._encode_stretch(part, continues or number > 0)
        ]

    def _tokenize(self, text: str, continues: bool = False) -> list[int]:
        if continues and self._line_break:
            ids = self._tokenize("\n" + text)
            known = len(self._line_break)
            return ids[known:] if ids[:known] == self._line_break else self._tokenize(text)
        data = text.encode()
        room = len(data) + 8  # byte fallback gives at most one id a byte, plus the space in front
        buffer = (api.llama_token * room)()
        count = api.llama_tokenize(self._vocab, data, len(data), buffer, room, False, False)
        if count < 0:
            raise ModelError(f"vocabulary: llama.cpp makes {-count} tokens of {len(data)} bytes of text")
        return list(buffer[:count])

    def _read_piece(self, token: int, special: bool) -> bytes:
        if not 0 <= token < self.vocab_size:
            raise ModelError(f"vocabulary: token id {token} is outside of 0 to {self.vocab_size - 1}")
        size = 32
        while True:
            buffer = ctypes.create_string_buffer(size)
            count = api.llama_token_to_piece(self._vocab, token, buffer, size, 0, special)
            if count >= 0:
                return buffer.raw[:count]
            size = -count

    def _special_tokens(self) -> Iterator[tuple[int, str, int]]:
        """Id, spelling and attributes of every token that is not ordinary text."""
        for token in range(self.vocab_size):
            attributes = api.llama_vocab_get_attr(self._vocab, token)
            if attributes & _SPECIAL and (text := api.llama_vocab_get_text(self._vocab, token)):
                yield token, text.decode("utf-8", "replace"), attributes

    def _find_ends(self, special: Iterable[int]) -> frozenset[int]:
        named = (api.llama_vocab_eos(self._vocab), api.llama_vocab_eot(self._vocab))  # perhaps typed as ordinary text
        return frozenset(token for token in (*special, *named) if api.llama_vocab_is_eog(self._vocab, token))

    def _template_pattern(self) -> re.Pattern[str]:
        """A pattern with a group for every marker, and the blanks that the vocabulary says it swallows."""

        def spelling(text: str, token: int) -> str:
            attributes = api.llama_vocab_get_attr(self._vocab, token)
            before = _C_SPACE if attributes & api.LLAMA_TOKEN_ATTR_LSTRIP else ""
            after = _C_SPACE if attributes & api.LLAMA_TOKEN_ATTR_RSTRIP else ""
            return f"{before}({re.escape(text)}){after}"

        longest_first = sorted(self._markers.items(), key=lambda item: -len(item[0]))
        return re.compile("|".join(spelling(text, token) for text, token in longest_first) or "(?!)")


def _is_marker(text: str, attributes: int, template: str) -> bool:
    if attributes & api.LLAMA_TOKEN_ATTR_CONTROL:
        return True
    if not attributes & api.LLAMA_TOKEN_ATTR_USER_DEFINED or not _BRACKETED.fullmatch(text):
        return False
    return not _HTML_TAG.fullmatch(text) or text in template


def _spelled(marker: str) -> str:
    """A pattern for a marker in user text: SentencePiece writes a space as U+2581."""
    return re.escape(marker).replace("▁", "[▁ ]")


def _valid(text: str) -> str:
    """The text with each surrogate pair as the character that it stands for and each lone surrogate as U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _stretches(text: str) -> Iterator[str]:
    start = 0
    while len(text) - start > STRETCH:
        ends = [found.start() for found in _BETWEEN_WORDS.finditer(text, start + 1, start + STRETCH)]
        end = ends[-1] if ends else start + STRETCH
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]
