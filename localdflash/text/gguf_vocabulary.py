"""Vocabularies that are read from a GGUF file's metadata and encoded by the `tokenizers` library.

The ids and special tokens equal llama.cpp's (src/llama-vocab.cpp in llama-cpp-python 0.3.36).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import isfinite
from typing import Any, TypeGuard, TypeVar

from tokenizers import Regex, Tokenizer, pre_tokenizers
from tokenizers.models import BPE

from localdflash.models.weights.gguf import GGUFHeader
from localdflash.text.vocabulary import SpecialToken

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # values of tokenizer.ggml.token_type
_C_SPACE = " \t\n\v\f\r"  # characters for which C's isspace() is true
# fmt: off
_END_NAMES = {
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
    "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>",
    "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~[",
}
# fmt: on
_FIM_NAMES = {  # role -> spellings; the first that the vocabulary has is a control token
    "prefix": "<|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE> <|code_prefix|> <|prefix|>",
    "suffix": "<|fim_suffix|> <fim-suffix> <fim_suffix> <｜fim▁hole｜> <SUF> ▁<SUF> <|code_suffix|> <|suffix|>",
    "middle": "<|fim_middle|> <fim-middle> <fim_middle> <｜fim▁end｜> <MID> ▁<MID> <|code_middle|> <|middle|>",
    "fim_pad": "<|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD]",
    "fim_rep": "<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>",
    "fim_sep": "<|file_sep|>",
}
_HARMONY_TEXT = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")  # gpt-oss: not control tokens

# Pre-tokenizer patterns, see `_PRE_TOKENIZERS`; each further pattern splits the pieces of the previous pattern.
_CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LETTERS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_NOT_LOWER, _NOT_UPPER = r"(?:(?=\p{L})[^a-z])", r"(?:(?=\p{L})[^A-Z])"


def _cased_word(end: str) -> str:
    """Return the pattern of a word with at most one change of case, from capitals to small letters, before `end`."""
    start = r"[^\r\n\p{L}\p{N}]?"
    return f"{start}{_NOT_LOWER}*{_NOT_UPPER}+{end}|{start}{_NOT_LOWER}+{_NOT_UPPER}*{end}"


_SYMBOLS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_PATTERNS = {
    "gpt2": (_GPT2,),
    "digits": (r"\p{N}", _GPT2),
    "qwen2": (rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}|{_SYMBOLS}|{_SPACES}",),
    "qwen35": (
        rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
        rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}",
    ),
    "llama3": (rf"{_CONTRACTIONS}|{_LETTERS}|\p{{N}}{{1,3}}|{_SYMBOLS}|{_SPACES}",),
    "gpt4o": (rf"{_cased_word(_CONTRACTIONS + '?')}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}",),
    "tekken": (rf"{_cased_word('')}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}",),
}
_PRE_TOKENIZERS = {
    **dict.fromkeys(("gpt-2", "phi-2", "mellum", "olmo", "mpt", "granite-docling"), "gpt2"),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell", "exaone", "mellum2"), "digits"),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan"), "qwen2"),
    "qwen35": "qwen35",
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "lfm2"), "llama3"),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2"), "gpt4o"),
    "tekken": "tekken",
}
_WHOLE_WORDS = ("llama3", "tekken")  # patterns whose BPE never splits a word that is a token
_ADD_BOS = ("llama3", "tekken")  # patterns whose models add BOS by default

Encoder = Callable[[str], list[int]]
T = TypeVar("T")


class GGUFVocabulary:
    """`ModelVocabulary` of a GGUF file. `encode` tokenizes text that has no user-defined tokens."""

    def __init__(self, header: GGUFHeader, ids: dict[str, int], types: list[int], encode: Encoder) -> None:
        self._values, self._encode = header.metadata, encode
        self.ids, self._texts, self._types = ids, list(ids), types
        self.size = len(ids)
        self._is_sentencepiece = self._values["tokenizer.ggml.model"] == "llama"
        default = (1, 2) if self._is_sentencepiece else (11, 11)
        self.bos_id, self.eos_id = self._id("bos", default[0]), self._id("eos", default[1])
        bos_by_default = self._is_sentencepiece or _PRE_TOKENIZERS[_pre_type(header)] in _ADD_BOS
        self.adds_bos = bool(self._values.get("tokenizer.ggml.add_bos_token", bos_by_default))
        self._control = {token for token, kind in enumerate(self._types) if kind == CONTROL}
        self.end_ids = self._find_ends()
        for text in (*_HARMONY_TEXT, "<|end|>"):
            if text in ids and (text in _HARMONY_TEXT or ids[text] not in self.end_ids):
                self._types[ids[text]] = USER_DEFINED
                self._control.discard(ids[text])
        self.special_tokens: Sequence[SpecialToken] = tuple(self._special_tokens())
        self._user_defined = sorted(
            (token for token in self.special_tokens if token.is_user_defined and not token.is_control),
            key=lambda token: -len(token.text.encode()),
        )
        self._space_prefix = bool(self._values.get("tokenizer.ggml.add_space_prefix", self._is_sentencepiece))

    def metadata(self, key: str) -> str | None:
        """See `ModelVocabulary`."""
        value = self._values.get(key)
        return None if value is None else str(value)

    def encode(self, text: str) -> list[int]:
        """See `ModelVocabulary`."""
        ids: list[int] = []
        after_special = True
        for part in self._split(text):
            if isinstance(part, int):
                ids.append(part)
                after_special = True
            elif part:
                ids += self._encode(" " + part if self._space_prefix and after_special else part)
                after_special = False
        return ids

    def decode_token(self, token: int, *, special: bool) -> bytes:
        """See `ModelVocabulary`."""
        text, kind = self._texts[token], self._types[token]
        if token in self._control or kind == UNKNOWN:
            return text.encode() if special else b""
        if kind == USER_DEFINED:
            return text.encode()
        if kind == BYTE:
            return bytes.fromhex(text[3:5])
        if kind != NORMAL:
            return b""
        return text.replace("▁", " ").encode() if self._is_sentencepiece else decode_bytes(text)

    def _id(self, name: str, default: int = -1) -> int:
        """Return the vocabulary's id of a role such as `eos`; -1 if neither it nor the default is in the vocabulary."""
        token = self._values.get(f"tokenizer.ggml.{name}_token_id", default)
        assert isinstance(token, int)
        if 0 <= token < len(self._texts):
            return token
        return default if default < len(self._texts) else -1

    def _find_ends(self) -> frozenset[int]:
        """Return the ids that end an answer; add the end and FIM tokens that are known by spelling to `_control`."""
        fim: dict[str, int] = {}
        for role, spellings in _FIM_NAMES.items():
            token = next((token for key in (f"fim_{role[:3]}", role) if (token := self._id(key)) >= 0), -1)
            if token < 0:
                token = next((self.ids[text] for text in spellings.split() if text in self.ids), -1)
                self._control |= {token} - {-1}
            fim[role] = token
        named = {self.ids[text] for text in _END_NAMES if text in self.ids}
        self._control |= named
        ends = named | {fim["fim_pad"], fim["fim_rep"], fim["fim_sep"], self.eos_id, self._id("eot"), self._id("eom")}
        texts = {self._texts[token] for token in ends - {-1}}
        if "<|end|>" in texts and "<|call|>" in texts and texts & {"<|return|>", "<|flush|>"}:
            ends.discard(self.ids["<|end|>"])  # gpt-oss: it ends a message, not the answer
        return frozenset(ends - {-1})

    def _special_tokens(self) -> Iterator[SpecialToken]:
        strips = any(name in str(self._values.get("general.name", "")).lower() for name in ("phi-3", "phi3"))
        for token, (text, kind) in enumerate(zip(self._texts, self._types, strict=True)):
            control = token in self._control
            if control or kind in (UNKNOWN, USER_DEFINED):
                after = strips and text not in ("<unk>", "<s>", "<|endoftext|>")
                yield SpecialToken(token, text, control, kind == USER_DEFINED, strips_after=after)

    def _split(self, text: str) -> list[str | int]:
        """Split text into the ids of user-defined tokens, longest first as in llama.cpp, and the text between them."""
        parts: list[str | int] = [text]
        for token in self._user_defined:
            if token.text in text:
                parts = [piece for part in parts for piece in _cut_at(part, token)]
        return parts


def open_vocabulary(header: GGUFHeader) -> GGUFVocabulary | None:
    """Return the vocabulary of a GGUF file; None if it is invalid or of a kind that only llama.cpp supports."""
    model = header.metadata.get("tokenizer.ggml.model")
    tokens, types = (header.metadata.get(f"tokenizer.ggml.{key}") for key in ("tokens", "token_type"))
    if not _is_list_of(tokens, str) or "\0" in "".join(tokens):
        return None
    types = [NORMAL] * len(tokens) if types is None else types
    if not _is_list_of(types, int) or len(types) < len(tokens) or not _has_valid_types(header):
        return None
    ids = {text or f"[EMPTY_{token}]": token for token, text in enumerate(tokens)}
    types = types[: len(ids)]
    encode = None
    if model == "llama":
        encode = _sentencepiece_encoder(header, ids, types)
    elif BYTE not in types and (tokenizer := byte_level_tokenizer(header, ids)):
        encode = partial(_encode_text, tokenizer)
    return GGUFVocabulary(header, ids, types, encode) if encode else None


def _is_list_of(values: object, kind: type[T]) -> TypeGuard[list[T]]:
    return isinstance(values, list) and {*map(type, values)} <= {kind}


def _has_valid_types(header: GGUFHeader) -> bool:
    """Return whether special-token ids and flags of the vocabulary have the types that llama.cpp requires."""
    kinds = {"_token_id": int, "add_bos_token": bool, "add_space_prefix": bool}
    return all(
        type(value) is kind
        for key, value in header.metadata.items()
        for end, kind in kinds.items()
        if key.startswith("tokenizer.ggml.") and key.endswith(end)
    )


def byte_level_tokenizer(header: GGUFHeader, ids: dict[str, int]) -> Tokenizer | None:
    """Return a byte-level BPE without special tokens; None for a vocabulary of another kind or with invalid merges."""
    if header.metadata.get("tokenizer.ggml.model") != "gpt2" or not (name := _PRE_TOKENIZERS.get(_pre_type(header))):
        return None
    spelled = header.metadata.get("tokenizer.ggml.merges")
    if not _is_list_of(spelled, str):
        return None
    merges = [(first, second) for first, _, second in (merge.partition(" ") for merge in spelled)]
    if any(first + second not in ids or first not in ids or second not in ids for first, second in merges):
        return None  # the library would panic at some of them
    tokenizer = Tokenizer(BPE(ids, merges, ignore_merges=name in _WHOLE_WORDS))
    splits: list[Any] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in _PATTERNS[name]]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    return tokenizer


def _encode_text(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


def _sentencepiece_encoder(header: GGUFHeader, ids: dict[str, int], types: list[int]) -> Encoder | None:
    """Return a BPE encoder that merges by score, highest first; None if BPE cannot reproduce llama.cpp's merges."""
    scores = header.metadata.get("tokenizer.ggml.scores")
    if not _is_list_of(scores, float) or len(scores) < len(ids) or not all(map(isfinite, scores)):
        return None
    if {text for text, token in ids.items() if types[token] == BYTE} != {f"<0x{byte:02X}>" for byte in range(256)}:
        return None
    counts = Counter(score for score, kind in zip(scores, types, strict=False) if kind == NORMAL)
    tied = (text for text, token in ids.items() if types[token] == NORMAL and counts[scores[token]] > 1)
    if any(len(set(text)) > 1 for text in tied):
        return None  # llama.cpp merges equal scores left to right; a merge list does so only for runs of one character
    if any(character not in ids for text in ids if types[ids[text]] == NORMAL for character in text):
        return None
    merges = [
        (text[:cut], text[cut:])
        for text in ids
        for cut in range(1, len(text))
        if text[:cut] in ids and text[cut:] in ids
    ]
    merges.sort(key=lambda merge: (-scores[ids[merge[0] + merge[1]]], -len(merge[0])))
    tokenizer = Tokenizer(BPE(ids, merges, byte_fallback=True))
    return lambda text: _encode_text(tokenizer, text.replace(" ", "▁"))


def _pre_type(header: GGUFHeader) -> str:
    return str(header.metadata.get("tokenizer.ggml.pre", "default"))


def _cut_at(part: str | int, token: SpecialToken) -> Iterator[str | int]:
    if isinstance(part, int):
        yield part
        return
    texts = part.split(token.text)
    yield texts[0]
    for text in texts[1:]:
        yield token.id
        yield text.lstrip(_C_SPACE) if token.strips_after else text


def _bytes_by_character() -> dict[str, int]:
    """Return the byte of each character in GPT-2's alphabet: printable Latin-1, and U+0100 on for the other bytes."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


_BYTE_OF = _bytes_by_character()


def decode_bytes(text: str) -> bytes:
    """Return the bytes of a byte-level token's text; a character outside the GPT-2 alphabet becomes its UTF-8 bytes."""
    return b"".join(bytes([_BYTE_OF[char]]) if char in _BYTE_OF else char.encode() for char in text)
