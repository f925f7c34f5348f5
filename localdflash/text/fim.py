"""Fill-in-the-middle prompts: one table of the formats that code models were trained with.

Code goes in as plain text and markers as ids, so a file that spells a marker (this one does) cannot change the prompt.
llama.cpp finds FIM tokens by their text and knows only some families; hence a table of our own, each marker checked
to be one token. With the suffix first ("spm"), typing only appends to the prompt; models trained for both get that.

Sources: the models' own READMEs, technical reports and reference tokenizers (Qwen3-Coder, DeepSeek-Coder, CodeGemma,
mistral-common `encode_fim`, Seed-Coder report, Mellum arXiv 2510.05788).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from localdflash.base.errors import ModelError
from localdflash.base.files.strict_toml import did_you_mean


class ModelFacts(Protocol):
    """What tells the format of a model."""

    def has_special(self, spelling: str) -> bool:
        """Whether one special token has this spelling."""

    def metadata(self, key: str) -> str | None:
        """A text among the file's metadata."""


class Vocabulary(ModelFacts, Protocol):
    """What prompts need of a vocabulary; see `Tokenizer`."""

    ends: frozenset[int]

    def encode(self, text: str, *, continues: bool = False) -> list[int]: ...  # noqa: D102

    def special(self, spelling: str) -> int: ...  # noqa: D102

    def bos(self) -> int | None: ...  # noqa: D102


@dataclass(frozen=True)
class FimFormat:
    """How one family spells a prompt: "psm" is prefix, suffix, middle; "spm" has the suffix first."""

    name: str
    prefix: str
    suffix: str
    middle: str | None
    order: Literal["psm", "spm"] = "psm"
    stops: tuple[str, ...] = ()  # tokens that end the middle, besides `Tokenizer.ends` and the markers
    stop_strings: tuple[str, ...] = ()  # text that does
    telltale: str | None = None  # a further token that tells the family from others with the same markers
    model_name: str = ""  # a word of `general.name` that does, where no token can
    longest: int = 1 << 30  # tokens of a prompt as it was trained with; longer ones are slower, and no better
    files: tuple[str, str] | None = None  # what stands before a repository's name and before each other file's

    @property
    def markers(self) -> tuple[str, ...]:
        """All markers of the format."""
        return tuple(marker for marker in (self.prefix, self.suffix, self.middle) if marker)


_PIPES = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
_PLAIN = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")
_QWEN_STOPS = ("<|endoftext|>", "<|im_end|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>")

# In the order of detection: where families share markers, the one with the stricter sign comes first.
FORMATS: dict[str, FimFormat] = {
    fim.name: fim
    for fim in (
        FimFormat("localdflash", *_PIPES, order="spm", stops=_QWEN_STOPS, telltale="<|mask|>"),
        FimFormat("codegemma", *_PIPES, stops=("<|file_separator|>", "<eos>"), telltale="<|file_separator|>"),
        FimFormat("granite4", *_PIPES, stops=("<|end_of_text|>", "<|pad|>"), telltale="<|end_of_text|>"),
        FimFormat("qwen", *_PIPES, stops=_QWEN_STOPS, files=("<|repo_name|>", "<|file_sep|>")),
        FimFormat(
            "localdflash-code",
            *_PLAIN,
            order="spm",
            stops=("<|endoftext|>", "<file_sep>"),
            model_name="localdflash",
            longest=1024,
            files=("<repo_name>", "<file_sep>"),
        ),
        FimFormat("mellum", *_PLAIN, order="spm", model_name="mellum"),
        FimFormat("granite", *_PLAIN, stops=("<|endoftext|>",), model_name="granite"),
        FimFormat("starcoder2", *_PLAIN, stops=("<file_sep>", "<|endoftext|>"), telltale="<file_sep>"),
        FimFormat("starcoder", *_PLAIN, stops=("<|endoftext|>",)),
        FimFormat("deepseek", "<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", stops=("<｜end▁of▁sentence｜>",)),
        FimFormat("codellama", "▁<PRE>", "▁<SUF>", "▁<MID>", stops=("▁<EOT>",)),
        FimFormat("codestral", "[PREFIX]", "[SUFFIX]", None, order="spm", stop_strings=("\n+++++ ",)),
        FimFormat(
            "seed",
            "<[fim-prefix]>",
            "<[fim-suffix]>",
            "<[fim-middle]>",
            order="spm",
            stops=("<[end▁of▁sentence]>",),
        ),
        FimFormat("glm", "<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
        FimFormat("prefix", "", "", None),  # no markers: goes on at the end of a file; only an entry can ask for it
    )
}


def format_of(name: str) -> FimFormat:
    """The format with this name, as an entry of the registry gives it; ModelError if there is none."""
    if name in FORMATS:
        return FORMATS[name]
    hint = did_you_mean(name, FORMATS) or f"; known are {', '.join(FORMATS)}"
    raise ModelError(f"fim = {name!r}: no such format{hint}")


def detect(tokenizer: ModelFacts) -> FimFormat:
    """The format whose markers are single tokens of this vocabulary; ModelError if there is none."""
    model_name = (tokenizer.metadata("general.name") or "").lower()
    for fim in FORMATS.values():
        needed = (*fim.markers, fim.telltale) if fim.telltale else fim.markers
        if needed and fim.model_name in model_name and all(map(tokenizer.has_special, needed)):
            return fim
    raise ModelError("vocabulary: no fill-in-the-middle tokens; for completion choose a code model trained with them")


def build(fim: FimFormat, tokenizer: Vocabulary, prefix: str, suffix: str) -> list[int]:
    """The prompt after which the model writes the middle; ModelError if a marker is not a single token."""
    check_place(fim, suffix)
    before, after = tokenizer.encode(prefix), tokenizer.encode(suffix, continues=True)
    return arrange(fim, tokenizer, (), before, after)


def check_place(fim: FimFormat, suffix: str) -> None:
    """ModelError if the format cannot tell the model what follows the cursor, and something does."""
    if not fim.markers and suffix.strip():
        raise ModelError("this model completes at the end of a file only: it was not trained to fill in the middle")


def arrange(
    fim: FimFormat,
    tokenizer: Vocabulary,
    head: Sequence[int],
    prefix: Sequence[int],
    suffix: Sequence[int],
    middle: Sequence[int] = (),
) -> list[int]:
    """The prompt of encoded parts, with the format's markers between them; ModelError as `build`.

    `middle` is how the middle begins: the model continues after it.
    """
    if fim.markers:
        before, after = [tokenizer.special(fim.prefix), *prefix], [tokenizer.special(fim.suffix), *suffix]
        code = before + after if fim.order == "psm" else after + before
    else:
        code = [*prefix]
    bos = tokenizer.bos()
    return [
        *([] if bos is None else [bos]),
        *head,
        *code,
        *([tokenizer.special(fim.middle)] if fim.middle else []),
        *middle,
    ]


def split(fim: FimFormat, text: str) -> tuple[str, str] | None:
    """Prefix and suffix of a prompt that a client wrote with the format's markers, in either order; None if it is none.

    A text that spells a marker once more is ambiguous, and counts as none.
    """
    if not fim.middle or any(text.count(marker) != 1 for marker in fim.markers) or not text.endswith(fim.middle):
        return None
    text = text.removesuffix(fim.middle)
    if text.startswith(fim.prefix):
        before, after = text.removeprefix(fim.prefix).split(fim.suffix)
        return before, after
    if text.startswith(fim.suffix):
        after, before = text.removeprefix(fim.suffix).split(fim.prefix)
        return before, after
    return None


@dataclass(frozen=True)
class FimHead:
    """The ids around other files at a prompt's head: what it begins with, what each file does, and what ends it."""

    begin: Sequence[int] = ()
    before_each: Sequence[int] = ()
    end: Sequence[int] = ()


def head_of_files(fim: FimFormat, tokenizer: Vocabulary) -> FimHead:
    """The head ids of this format; empty if it has no file separators."""
    if not fim.files:
        return FimHead()
    repository, separator = map(tokenizer.special, fim.files)
    begin, end = tokenizer.encode("repository\n"), tokenizer.encode("current\n")
    return FimHead([repository, *begin], [separator], [separator, *end])


def stop_ids(fim: FimFormat, tokenizer: Vocabulary) -> frozenset[int]:
    """The ids that end the middle: those that end any answer, the format's markers and those stops the model has."""
    own = (*fim.markers, *fim.stops)
    return tokenizer.ends.union(tokenizer.special(stop) for stop in own if tokenizer.has_special(stop))
