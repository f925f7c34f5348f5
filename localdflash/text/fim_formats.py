"""Fill-in-the-middle (FIM) prompts: one table of the formats that code models were trained with.

Code is encoded as plain text and markers as ids, so a file that spells a marker cannot change the prompt. With the
suffix first ("spm"), typing only appends to the prompt. Sources: the models' READMEs, reports and tokenizers.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from localdflash.base.errors import ModelError, did_you_mean

if TYPE_CHECKING:  # the language server loads no tokenizer
    from localdflash.text.tokenizer import Tokenizer


class ModelFacts(Protocol):
    """Interface to the properties of a model that identify its FIM format."""

    def has_special(self, spelling: str) -> bool:
        """Return whether one special token has this spelling."""

    def metadata(self, key: str) -> str | None:
        """Return a string of the model file's metadata, or None."""


class Vocabulary(Protocol):
    """Interface of `Tokenizer` that prompts are built with."""

    def encode(self, text: str, *, continues: bool = False) -> list[int]: ...  # noqa: D102

    def special(self, spelling: str) -> int: ...  # noqa: D102

    def bos(self) -> int | None: ...  # noqa: D102


@dataclass(frozen=True)
class FimFormat:
    """FIM format of one family. "psm" is prefix, suffix, middle; "spm" has the suffix first."""

    name: str
    prefix: str
    suffix: str
    middle: str | None
    order: Literal["psm", "spm"] = "psm"
    stops: tuple[str, ...] = ()  # tokens that end the middle besides the markers and `Tokenizer.ends`
    stop_strings: tuple[str, ...] = ()  # text that ends the middle
    family_token: str | None = None  # a further token that vocabularies of this family have
    model_name: str = ""  # a word of `general.name` that identifies the family if no token does
    architecture: str = ""  # `general.architecture` that identifies the family, whatever the model's name
    max_prompt_tokens: int = 1 << 30  # length of the longest in training; longer ones are slower and not better
    file_tokens: tuple[str, str] | None = None  # tokens before the repository's and before each file's name

    @property
    def markers(self) -> tuple[str, ...]:
        """Return the spellings of the format's markers; empty for the format `prefix`."""
        return tuple(marker for marker in (self.prefix, self.suffix, self.middle) if marker)


_PIPES = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
_NO_PIPES = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")
_NEXT_EDIT_NAMES = re.compile(r"\bzeta(?:\b|[-_ ]?\d)|\bsweep\b|\bnext[-_ ]edit\b")
_EDITABLE_REGION = "<|editable_region_start|>"
PREDICTS_EDITS = "the model predicts edits and does not fill in the middle; choose a code model trained for it"
_QWEN_STOPS = ("<|endoftext|>", "<|im_end|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>")

# In the order of detection: of formats with the same markers, the most specific comes first.
FORMATS: dict[str, FimFormat] = {
    fim.name: fim
    for fim in (
        FimFormat("localdflash", *_PIPES, order="spm", stops=_QWEN_STOPS, family_token="<|mask|>"),
        FimFormat("codegemma", *_PIPES, stops=("<|file_separator|>", "<eos>"), family_token="<|file_separator|>"),
        FimFormat("granite4", *_PIPES, stops=("<|end_of_text|>", "<|pad|>"), family_token="<|end_of_text|>"),
        FimFormat("qwen", *_PIPES, stops=_QWEN_STOPS, file_tokens=("<|repo_name|>", "<|file_sep|>")),
        FimFormat(
            "localdflash-code",
            *_NO_PIPES,
            order="spm",
            stops=("<|endoftext|>", "<file_sep>"),
            model_name="localdflash",
            max_prompt_tokens=1024,
            file_tokens=("<repo_name>", "<file_sep>"),
        ),
        FimFormat("mellum", *_NO_PIPES, order="spm", model_name="mellum", architecture="mellum"),
        FimFormat("granite", *_NO_PIPES, stops=("<|endoftext|>",), model_name="granite"),
        FimFormat("starcoder2", *_NO_PIPES, stops=("<file_sep>", "<|endoftext|>"), family_token="<file_sep>"),
        FimFormat("starcoder", *_NO_PIPES, stops=("<|endoftext|>",)),
        FimFormat("deepseek", "<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", stops=("<｜end▁of▁sentence｜>",)),
        FimFormat("codellama", "▁<PRE>", "▁<SUF>", "▁<MID>", stops=("▁<EOT>",)),
        FimFormat("codestral", "[PREFIX]", "[SUFFIX]", None, order="spm", stop_strings=("\n+++++ ",)),
        FimFormat(
            "seed", "<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>", order="spm", stops=("<[end▁of▁sentence]>",)
        ),
        FimFormat("glm", "<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
        FimFormat("prefix", "", "", None),  # no markers: continues the end of a file; only a registry entry selects it
    )
}


def format_of(name: str) -> FimFormat:
    """Return the format with this name from a registry entry; ModelError if there is none."""
    if name in FORMATS:
        return FORMATS[name]
    hint = did_you_mean(name, FORMATS) or f" (expected one of {', '.join(FORMATS)})"
    raise ModelError(f"fim = {name!r}: unknown format{hint}")


def detect(model: ModelFacts) -> FimFormat:
    """Return the format that fits a model's vocabulary and name; ModelError if none does, or for next-edit models."""
    model_name, architecture = ((model.metadata(f"general.{key}") or "").lower() for key in ("name", "architecture"))
    if is_next_edit_model(model_names(model)) or model.has_special(_EDITABLE_REGION):
        raise ModelError(PREDICTS_EDITS)
    for fim in FORMATS.values():
        needed = (*fim.markers, fim.family_token) if fim.family_token else fim.markers
        is_named = fim.model_name in model_name or (architecture != "" and fim.architecture == architecture)
        if needed and is_named and all(map(model.has_special, needed)):
            return fim
    raise ModelError("vocabulary: no fill-in-the-middle tokens; choose a code model trained with them")


def model_names(model: ModelFacts) -> str:
    """Return the names in a model's metadata, in lower case."""
    return " ".join(model.metadata(f"general.{key}") or "" for key in ("name", "basename")).lower()


def is_next_edit_model(name: str) -> bool:
    """Return whether a model's name is that of a next-edit model; its vocabulary may still have FIM markers."""
    return bool(_NEXT_EDIT_NAMES.search(name.lower()))


def build(fim: FimFormat, tokenizer: "Tokenizer", prefix: str, suffix: str, enough: float = math.inf) -> list[int]:
    """Return the prompt that the model continues with the middle; ModelError if the model cannot.

    Text of the prefix or the suffix after `enough` ids each is left out.
    """
    check_suffix(fim, suffix)
    before = tokenizer.encode(prefix, enough=enough)
    after = tokenizer.encode(suffix, continues=True, enough=enough)
    return arrange_prompt(fim, tokenizer, (), before, after)


def check_suffix(fim: FimFormat, suffix: str) -> None:
    """Raise ModelError if the suffix has text and the format has no place for it."""
    if not fim.markers and suffix.strip():
        raise ModelError("the model was not trained to fill in the middle; it completes at the end of a file only")


def arrange_prompt(
    fim: FimFormat,
    tokenizer: Vocabulary,
    head: Sequence[int],
    prefix: Sequence[int],
    suffix: Sequence[int],
    middle: Sequence[int] = (),
) -> list[int]:
    """Return a prompt: BOS, `head` (see `FimHead`), the code with markers, and the known beginning of the middle."""
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


def split(text: str) -> tuple[str, str] | None:
    """Return prefix and suffix of a prompt that spells any format's three markers once each; None for other text."""
    return next((parts for fim in FORMATS.values() if (parts := _split_at(fim, text))), None)


def _split_at(fim: FimFormat, text: str) -> tuple[str, str] | None:
    if not fim.middle or any(text.count(marker) != 1 for marker in fim.markers) or not text.endswith(fim.middle):
        return None
    text = text.removesuffix(fim.middle)
    for first, second in ((fim.prefix, fim.suffix), (fim.suffix, fim.prefix)):
        if text.startswith(first):
            before, after = text.removeprefix(first).split(second)
            return (before, after) if first == fim.prefix else (after, before)
    return None


@dataclass(frozen=True)
class FimHead:
    """Ids around other files' text at the head of a prompt: before all, before each, and after all of them."""

    begin: Sequence[int] = ()
    before_each: Sequence[int] = ()
    end: Sequence[int] = ()


def repository_head(fim: FimFormat, tokenizer: Vocabulary) -> FimHead:
    """Return the ids around other files; empty if the format has no `file_tokens`."""
    if not fim.file_tokens:
        return FimHead()
    repository, separator = map(tokenizer.special, fim.file_tokens)
    begin, end = tokenizer.encode("repository\n"), tokenizer.encode("current\n")
    return FimHead([repository, *begin], [separator], [separator, *end])


def stop_ids(fim: FimFormat, tokenizer: "Tokenizer") -> frozenset[int]:
    """Return the ids that end the middle: the model's end tokens, and the format's markers and stops that exist."""
    spellings = (*fim.markers, *fim.stops)
    return tokenizer.ends.union(map(tokenizer.special, filter(tokenizer.has_special, spellings)))
