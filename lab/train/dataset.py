"""Tokenizer and token files of the corpus.

`tokens.bin` has uint32 ids. `examples.npy` has an EXAMPLE_DTYPE per example, in units of ids.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split
from tokenizers.trainers import BpeTrainer

from localdflash.lab.train import corpus
from localdflash.lab.train.examples import KINDS, Example, ExamplePiece, Special, examples

# llama.cpp's pre-tokenizer "qwen2".
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIALS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<|mask|>",
)
EXAMPLE_DTYPE = np.dtype([("start", "<u4"), ("prompt", "<u2"), ("length", "<u2"), ("kind", "u1")])


@dataclass(frozen=True)
class Dataset:
    """Token ids, and the EXAMPLE_DTYPE of each example."""

    tokens: NDArray[np.uint32]
    examples: NDArray[np.void]

    @classmethod
    def load(cls, folder: Path) -> "Dataset":
        """Memory-map the files of `write`."""
        return cls(np.memmap(folder / "tokens.bin", np.uint32, "r"), np.load(folder / "examples.npy"))


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE on `texts`, leaving the last ids to the special tokens, which do not match text."""
    tokenizer = Tokenizer(BPE())
    split = Split(Regex(QWEN2_SPLIT), behavior="isolated")
    tokenizer.pre_tokenizer = Sequence([split, ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = ByteLevelDecoder()
    trainer = BpeTrainer(
        vocab_size=vocab_size - len(SPECIALS), initial_alphabet=ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def special_ids(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the ids of the special tokens, which follow the text vocabulary."""
    return {token: tokenizer.get_vocab_size() + i for i, token in enumerate(SPECIALS)}


def build(folder: Path, wheels: Path, vocab_size: int, seed: int, report: Callable[[str], None]) -> None:
    """Fetch the corpus and write tokenizer.json and the `train` and `held_out` splits below `folder`."""
    fetched = corpus.fetch(corpus.read_list(), wheels)
    sources = {
        held_out: [
            text for package, wheel in fetched if package.held_out == held_out for text in corpus.python_files(wheel)
        ]
        for held_out in (False, True)
    }
    folder.mkdir(parents=True, exist_ok=True)
    random.Random(seed).shuffle(sources[False])
    tokenizer = train_tokenizer(sources[False][:4000], vocab_size)
    tokenizer.save(str(folder / "tokenizer.json"))
    for held_out, name in ((False, "train"), (True, "held_out")):
        count = write(folder / name, tokenizer, _examples_of(sources[held_out], seed))
        report(f"{name}: {len(sources[held_out]):,} files, {count:,} tokens")


def _examples_of(sources: list[str], seed: int) -> Iterator[Example]:
    for i, source in enumerate(sources):
        yield from examples(source, random.Random(f"{seed}/{i}"))


def write(folder: Path, tokenizer: Tokenizer, examples_to_write: Iterable[Example]) -> int:
    """Write `tokens.bin` and `examples.npy`, skipping examples of more than 1024 ids; return the number of ids."""
    folder.mkdir(parents=True, exist_ok=True)
    ids = special_ids(tokenizer)
    rows: list[tuple[int, int, int, int]] = []
    total = 0
    with (folder / "tokens.bin").open("wb") as file:
        stream = iter(examples_to_write)
        while batch := list(islice(stream, 512)):
            encoded = iter(
                tokenizer.encode_batch([p for e in batch for p in (*e.prompt, *e.answer) if isinstance(p, str)])
            )

            def to_ids(piece: ExamplePiece) -> list[int]:
                return [ids[piece.token]] if isinstance(piece, Special) else next(encoded).ids  # noqa: B023

            for example in batch:
                prompt = [i for piece in example.prompt for i in to_ids(piece)]
                answer = [i for piece in example.answer for i in to_ids(piece)]
                length = len(prompt) + len(answer)
                if length > 1024:
                    continue
                rows.append((total, len(prompt), length, KINDS.index(example.kind)))
                np.array(prompt + answer, np.uint32).tofile(file)
                total += length
    np.save(folder / "examples.npy", np.array(rows, EXAMPLE_DTYPE))
    return total
