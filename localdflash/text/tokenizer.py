"""Turn text into token ids and back, with the vocabulary of a GGUF file.

`encode` takes user text: whatever it spells, the result holds no marker. `split_markers` takes trusted text (a chat
template), where spellings such as `<|im_start|>` become marker ids. A *marker* is a control token, or a user-defined
token spelled in brackets (`<tool_call>`, `[PAD7]`), except HTML tags that the chat template does not use.

Long text is tokenised in segments of at most 4 096 characters, cut between two words, where every pre-tokenizer cuts
too: several of llama.cpp's pre-tokenizers recurse once per character and overflow the stack.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Self

from localdflash.base import extras
from localdflash.base.errors import ModelError
from localdflash.models.weights.gguf import read_header
from localdflash.text.gguf_vocabulary import open_vocabulary
from localdflash.text.vocabulary import ModelVocabulary, SpecialToken

MAX_SEGMENT_CHARS = 4096  # a run of 20 000 letters overflows an 8 MiB stack
_BETWEEN_WORDS = re.compile(r"(?<=[A-Za-z])(?= [A-Za-z])")
_BRACKETED = re.compile(r"<.+>|\[.+\]", re.DOTALL)
_HTML_TAG = re.compile(r"</?[a-z][a-z0-9]*>")
_C_SPACE = r"[ \t\n\v\f\r]*"


class Tokenizer:
    """Tokenizer of one model. Thread-safe."""

    def __init__(self, vocabulary: ModelVocabulary) -> None:
        self._vocabulary = vocabulary
        self.vocab_size = vocabulary.size
        self._pieces: dict[tuple[int, bool], bytes] = {}
        self.specials: Mapping[str, int] = {token.text: token.id for token in vocabulary.special_tokens}
        template = self.chat_template() or ""
        markers = {token.text: token for token in vocabulary.special_tokens if _is_marker(token, template)}
        self._markers = {text: token.id for text, token in markers.items()}
        self.markers = frozenset(self._markers.values())  # the ids of all markers
        longest_first = sorted(markers.values(), key=lambda token: -len(token.text))
        self._marker_pattern = re.compile("|".join(map(_marker_regex, longest_first)) or "(?!)")
        self._marker_starts = re.compile(f"(?={'|'.join(map(_user_text_regex, self._markers)) or '(?!)'})")
        self.ends = vocabulary.end_ids  # the ids that end an answer
        line_break = self._tokenize("\n")
        self._line_break = line_break if self.spell(line_break).startswith(b" ") else []  # [] if no space is added

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read only the vocabulary of a GGUF file; ModelError if the file is damaged or has no vocabulary."""
        return cls(read_vocabulary(path))

    def encode(self, text: str, *, continues: bool = False, enough: float = math.inf) -> list[int]:
        """Return the ids of user text: no BOS, no marker whatever the text spells; a lone surrogate counts as U+FFFD.

        SentencePiece vocabularies put a space before text, unless the text `continues` other text. Once there are more
        than `enough` ids, the remaining segments are left out.
        """
        ids: list[int] = []
        for segment in _split_segments(_replace_surrogates(text)):
            if len(ids) > enough:
                break
            ids += self._encode_segment(segment, continues)
            continues = True
        return ids

    def split_markers(self, text: str) -> list[str | int]:
        """Split trusted text into the text between markers and the ids of the markers."""
        parts: list[str | int] = []
        end = 0
        for match in self._marker_pattern.finditer(text):
            assert match.lastindex  # every alternative has one group
            parts += [text[end : match.start()], self._markers[match[match.lastindex]]]
            end = match.end()
        return [part for part in (*parts, text[end:]) if part != ""]

    def special(self, spelling: str) -> int:
        """Return the id of the one special token with this spelling; ModelError if the vocabulary has none."""
        try:
            return self.specials[spelling]
        except KeyError:
            raise ModelError(
                f"vocabulary: {spelling!r} is not a single special token of this model; choose a model trained with it"
            ) from None

    def has_special(self, spelling: str) -> bool:
        """Return whether one special token has this spelling."""
        return spelling in self.specials

    def bos(self) -> int | None:
        """Return the id that begins every prompt of this model, if any."""
        return self._vocabulary.bos_id if self._vocabulary.adds_bos else None

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Return the bytes of one id, perhaps part of a character; control tokens are empty unless `special`."""
        key = (token, special)
        if key not in self._pieces:
            if not 0 <= token < self.vocab_size:
                raise ModelError(f"vocabulary: token id {token} is outside of 0 to {self.vocab_size - 1}")
            self._pieces[key] = self._vocabulary.decode_token(token, special=special)
        return self._pieces[key]

    def text_of(self, token: int) -> str:
        """Return the text of one id, control tokens included."""
        return self.piece(token, special=True).decode("utf-8", "replace")

    def spell(self, ids: Iterable[int]) -> bytes:
        """Return the bytes of a sequence of ids, control tokens left out."""
        return b"".join(map(self.piece, ids))

    def metadata(self, key: str) -> str | None:
        """Return a value of the model file's metadata as text, or None."""
        return self._vocabulary.metadata(key)

    def chat_template(self) -> str | None:
        """Return the Jinja source of the model's chat template, if it has one."""
        return self.metadata("tokenizer.chat_template")

    def template_tokens(self) -> dict[str, str]:
        """Return the values of `bos_token` and `eos_token` for a chat template."""
        ids = {"bos_token": self._vocabulary.bos_id, "eos_token": self._vocabulary.eos_id}
        return {name: self.text_of(token) if token >= 0 else "" for name, token in ids.items()}

    def _encode_segment(self, text: str, continues: bool) -> list[int]:
        ids = self._tokenize(text, continues)
        if self.markers.isdisjoint(ids):
            return ids
        cuts = [0, *(match.start() + 1 for match in self._marker_starts.finditer(text)), len(text)]
        parts = [text[start:end] for start, end in pairwise(cuts) if start < end]
        if len(parts) == 1:  # no spelling to cut at; not seen with any vocabulary
            return [token for token in ids if token not in self.markers]
        return [
            token for number, part in enumerate(parts) for token in self._encode_segment(part, continues or number > 0)
        ]

    def _tokenize(self, text: str, continues: bool = False) -> list[int]:
        if continues and self._line_break:
            ids = self._tokenize("\n" + text)
            prefix_size = len(self._line_break)
            return ids[prefix_size:] if ids[:prefix_size] == self._line_break else self._tokenize(text)
        return self._vocabulary.encode(text)


def read_vocabulary(path: Path) -> ModelVocabulary:
    """Return the vocabulary of a GGUF file (llama.cpp's for kinds not in `gguf_vocabulary`); ModelError without one."""
    header = read_header(path)
    if header.metadata.get("tokenizer.ggml.model") in (None, "none", "no_vocab"):
        raise ModelError(f"{path}: no vocabulary (tokenizer.ggml.model); convert the model again")
    if vocabulary := open_vocabulary(header):
        return vocabulary
    extras.require("llama", f"{path}: its vocabulary")
    from localdflash.text.llama_vocabulary import LlamaVocabulary

    return LlamaVocabulary(path)


def _is_marker(token: SpecialToken, template: str) -> bool:
    if token.is_control:
        return True
    if not token.is_user_defined or not _BRACKETED.fullmatch(token.text):
        return False
    return not _HTML_TAG.fullmatch(token.text) or token.text in template


def _marker_regex(token: SpecialToken) -> str:
    """Return a pattern with the marker as its group, and the blanks that the marker swallows."""
    before, after = (_C_SPACE if strips else "" for strips in (token.strips_before, token.strips_after))
    return f"{before}({re.escape(token.text)}){after}"


def _user_text_regex(marker: str) -> str:
    """Return a pattern for a marker in user text: SentencePiece writes a space as U+2581."""
    return re.escape(marker).replace("▁", "[▁ ]")


def _replace_surrogates(text: str) -> str:
    """Return the text with surrogate pairs joined and lone surrogates replaced by U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _split_segments(text: str) -> Iterator[str]:
    start = 0
    while len(text) - start > MAX_SEGMENT_CHARS:
        ends = [match.start() for match in _BETWEEN_WORDS.finditer(text, start + 1, start + MAX_SEGMENT_CHARS)]
        end = ends[-1] if ends else start + MAX_SEGMENT_CHARS
        yield text[start:end]
        start = end
    yield text[start:]
