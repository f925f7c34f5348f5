"""Tiny vocabularies as GGUF files, and the `tokenizers` library with the same merges as an independent oracle."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import llama_cpp.llama_cpp as api
import pytest
import tokenizers
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.trainers import BpeTrainer

from localdflash.backends.llamacpp.llama_library import load_model
from localdflash.text.tokenizer import Tokenizer
from tests.support.gguf_writing import finish

QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEXTS = (
    "def add(first, second):\n    return first + second\n\n\nclass Tree:\n    def __init__(self, root=None):\n",
    "for item in items:\n        print(item)\n    # the end of the file, not of the line\n",
    "The user asks and the assistant answers; system messages say how. éàü 错误 😋 naïve",
)
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6  # GGUF token types
CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CODE = (*CHATML, "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>")

MakeVocabulary = Callable[..., Path]


def _writer(path: Path, model: str, metadata: Mapping[str, str]) -> gguf.GGUFWriter:
    writer = gguf.GGUFWriter(path, "qwen3")
    for key, value in metadata.items():
        writer.add_string(key, value)
    writer.add_tokenizer_model(model)
    writer.add_context_length(64)
    writer.add_embedding_length(8)
    writer.add_block_count(1)
    writer.add_feed_forward_length(8)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-6)
    return writer


@pytest.fixture(scope="session")
def oracle() -> tokenizers.Tokenizer:
    """Train a byte-level BPE with a few hundred merges."""
    tokenizer = tokenizers.Tokenizer(BPE())
    split = Split(tokenizers.Regex(QWEN2_SPLIT), behavior="isolated")
    tokenizer.pre_tokenizer = Sequence([split, ByteLevel(add_prefix_space=False, use_regex=False)])
    alphabet = ByteLevel.alphabet()
    tokenizer.train_from_iterator(TEXTS, BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False))
    return tokenizer


@pytest.fixture(scope="session")
def make_vocabulary(oracle: tokenizers.Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> MakeVocabulary:
    """Return a function that writes the oracle's vocabulary followed by `specials` (spelling -> GGUF token type)."""
    text_model = json.loads(oracle.to_str())["model"]
    text_tokens = sorted(text_model["vocab"], key=text_model["vocab"].__getitem__)

    def make(
        specials: Mapping[str, int],
        metadata: Mapping[str, str] | None = None,
        bos: str | None = None,
        pre: str = "qwen2",
    ) -> Path:
        path = tmp_path_factory.mktemp("vocabulary") / "vocabulary.gguf"
        writer = _writer(path, "gpt2", metadata or {})
        writer.add_tokenizer_pre(pre)
        tokens = [*text_tokens, *specials]
        writer.add_token_list(tokens)
        writer.add_token_types([NORMAL] * len(text_tokens) + list(specials.values()))
        writer.add_token_merges([" ".join(merge) for merge in text_model["merges"]])
        writer.add_eos_token_id(len(text_tokens))
        if bos is not None:
            writer.add_bos_token_id(tokens.index(bos))
            writer.add_add_bos_token(True)
        finish(writer)
        return path

    return make


@pytest.fixture(scope="session")
def vocabulary_file(make_vocabulary: MakeVocabulary) -> Path:
    """Write a vocabulary with Qwen's chat, FIM and user-defined tokens, a run of blanks and an HTML tag."""
    specials = dict.fromkeys(CODE, CONTROL)
    specials["<|im_end|>!"] = CONTROL
    specials |= dict.fromkeys(("<think>", "</think>", "<tool_call>", "[PAD7]", "      ", "<table>"), USER_DEFINED)
    template = "{{ '<think>' }}{{ '</think>' }}"
    return make_vocabulary(specials, {"tokenizer.chat_template": template, "general.name": "Tiny"})


@pytest.fixture(scope="session")
def tokenizer(vocabulary_file: Path) -> Tokenizer:
    """Load the tokenizer of `vocabulary_file`."""
    return Tokenizer.load(vocabulary_file)


@pytest.fixture(scope="session")
def llama_ids(vocabulary_file: Path) -> Callable[[str], list[int]]:
    """Return llama.cpp's encoder for `vocabulary_file`, which recognises spellings of control tokens."""
    model = load_model(vocabulary_file, vocab_only=True)

    def encode(text: str) -> list[int]:
        data = text.encode()
        buffer = (api.llama_token * 1000)()
        count = api.llama_tokenize(api.llama_model_get_vocab(model), data, len(data), buffer, 1000, False, True)
        return list(buffer[:count])

    return encode


@pytest.fixture(scope="session")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """Load the tokenizer of `sentencepiece_file` with equal scores, which only llama.cpp encodes."""
    return Tokenizer.load(sentencepiece_file(tmp_path_factory.mktemp("vocabulary"), tie=True))


def sentencepiece_file(folder: Path, *, tie: bool) -> Path:
    """Write a vocabulary with CodeLlama's markers, runs of spaces and merges that lead to a control token."""
    path = folder / "sentencepiece.gguf"
    writer = _writer(path, "llama", {})
    letters = [chr(code) for code in range(33, 127)]
    words = ["▁", "▁d", "de", "def", "▁def", "<s", "▁x", "▁<", "▁<P", "▁<PR", "▁<PRE", "▁▁", "▁▁▁", "▁▁▁▁"]
    markers = ["▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *letters, *words, *markers]
    types = [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * (len(letters) + len(words)) + [CONTROL] * 4
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    runs = {token for token in tokens if set(token) == {"▁"}}
    writer.add_token_scores(
        [float(len(token)) if tie else -1e9 if token in runs else -float(index) for index, token in enumerate(tokens)]
    )
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    finish(writer)
    return path
