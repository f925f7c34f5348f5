"""Rewrite a drafter's files with a short vocabulary: the most frequent tokens of its target's own answers."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import gguf

from localdflash.base.errors import ModelError, TrainingError, UsageError
from localdflash.lab.train.dataset import Dataset
from localdflash.lab.train.pair_export import add_short_head, finish, write_json
from localdflash.lab.train.short_vocabulary import ShortVocabulary, count
from localdflash.models.shapes.dflash_config import OURS, SHORT_HEAD, SHORT_KEY, check_fit
from localdflash.models.shapes.dflash_file import config_of_file
from localdflash.models.shapes.gguf_config import decoder_config
from localdflash.models.weights.gguf import GGUFHeader


def drafters_in(folder: Path) -> list[Path]:
    """Return the paths of the GGUF and the safetensors drafter in a folder; TrainingError if neither exists."""
    drafters = [path for name in ("drafter.gguf", "drafter.safetensors") if (path := folder / name).is_file()]
    if not drafters:
        raise TrainingError(f"{folder}: no drafter; run `localdflash train drafter {folder}` first")
    return drafters


def check(drafter: Path, target: GGUFHeader) -> None:
    """Raise ModelError if a drafter does not fit the target, or if its head cannot be shortened."""
    c, config = decoder_config(target), config_of_file(drafter)
    if config.kind != "dflash" or config.own_head:
        raise ModelError(f"{drafter}: a short vocabulary needs a DFlash drafter without its own head")
    check_fit(config, c.hidden_size, c.vocab_size, c.num_hidden_layers, str(drafter))


def shorten(drafter: Path, target: GGUFHeader, ids: Sequence[int]) -> None:
    """Restrict a drafter's proposals to `ids`; UsageError if its file, then unmodified, cannot be written."""
    path = drafter if drafter.suffix == ".gguf" else drafter.with_name("config.json")
    try:
        if path is drafter:
            _write_gguf(drafter, target, ids)
        else:
            document = json.loads(path.read_bytes())
            document[OURS] = {**(document.get(OURS) or {}), "short_vocabulary": list(ids)}
            write_json(path, document)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror}; check the folder and its disk") from None


def _write_gguf(drafter: Path, target: GGUFHeader, ids: Sequence[int]) -> None:
    reader, writer = gguf.GGUFReader(drafter), gguf.GGUFWriter(drafter, "dflash")
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", SHORT_KEY):
            inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), field.types[0], sub_type=inner)
    for tensor in reader.tensors:
        if tensor.name not in SHORT_HEAD:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    add_short_head(writer, target, ids)
    finish(writer, drafter)


def answers_of(data: Dataset) -> Iterator[list[int]]:
    """Yield the ids of each answer."""
    for row in data.examples:
        start = int(row["start"])
        yield data.tokens[start + int(row["prompt"]) : start + int(row["length"])].tolist()


def count_answers(folder: Path, vocab_size: int, size: int, ends: frozenset[int]) -> ShortVocabulary:
    """Return the `size` most frequent tokens of the answers in `folder`, always including the end tokens.

    UsageError if `size` is not below `vocab_size`; TrainingError without answers.
    """
    if size >= vocab_size:
        raise UsageError(f"--size {size}: expected less than the {vocab_size} tokens of the target's vocabulary")
    if not (folder / "examples.npy").is_file():
        raise TrainingError(f"{folder}: no answers; run `localdflash train drafter {folder.parent}` first")
    short = count(answers_of(_load(folder)), vocab_size, size, sorted(ends))
    if not short.counted:
        raise TrainingError(f"{folder}: all answers are empty; let the target answer more prompts")
    return short


def _load(folder: Path) -> Dataset:
    again = "delete it and run `localdflash train drafter` again"
    try:
        data = Dataset.load(folder)
    except (OSError, ValueError) as error:
        raise TrainingError(f"{folder}: cannot be read: {error}; {again}") from None
    needed = max((int(row["start"]) + int(row["length"]) for row in data.examples), default=0)
    if needed > len(data.tokens):
        raise TrainingError(f"{folder}: cannot be read: expected {needed} tokens, got {len(data.tokens)}; {again}")
    return data
