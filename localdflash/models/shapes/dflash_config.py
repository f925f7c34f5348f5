"""Configuration of a drafter of the DFlash family, which `dflash_file` reads from the files of each format.

Every field of the formats is either used or refused by name, so that no drafter runs with a wrong configuration.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from localdflash.base.errors import ModelError
from localdflash.models.shapes.decoder_config import DecoderConfig
from localdflash.models.shapes.fingerprint import TrainedFor

OURS = "localdflash"
RETRAIN_VOCABULARY = "run `localdflash train vocabulary` again"
SHORT_KEY = f"{OURS}.short_vocabulary"
SHORT_HEAD = ("d2t", "output.weight")  # tensors of a GGUF: token ids of the LM head's rows, and these rows

Kind = Literal["dflash", "dflash2", "dspark"]


@dataclass(frozen=True)
class DFlashConfig:
    """Shape and conventions of one drafter checkpoint.

    A draft block has `block_size` slots: the anchor (the last known token), then mask tokens, which propose tokens.
    """

    decoder: DecoderConfig  # num_hidden_layers are the drafter's own
    block_size: int
    mask_token_id: int
    taps: tuple[int, ...]  # 0-based target layers whose hidden-state features (outputs) the drafter reads
    window: int | None = None  # tokens that a sliding layer sees, the query included
    sliding: tuple[bool, ...] = ()  # for each layer, whether it sees only the window; empty: no layer
    causal: bool | None = None  # attention inside the draft block; None: only in sliding layers
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    softcap: float = 0.0
    from_anchor: bool = False  # whether the anchor proposes, too; each slot then proposes the token after it
    short: tuple[int, ...] = ()  # short vocabulary: ids of the tokens that can be proposed, ascending; empty: all
    trained_for: TrainedFor | None = None
    own_embedding: bool = False  # instead of the target's
    own_head: bool = False  # instead of the target's
    markov_rank: int = 0  # DSpark: each slot's logits depend on the previous token
    has_confidence_head: bool = False  # DSpark
    conv_kernel: int = 0  # DFlash 2: inputs of the local convolutions
    conv_group: int = 0  # channels that share a coefficient
    selector_rank: int = 0  # DFlash 2: a slot's best candidates are scored by the previous token
    selector_top_k: int = 0  # candidates per slot

    @property
    def kind(self) -> Kind:
        """Return the kind: DFlash 2 has a selector, DSpark a Markov head."""
        if self.selector_rank:
            return "dflash2"
        return "dspark" if self.markov_rank else "dflash"

    @property
    def first_slot(self) -> int:
        """Return the first slot that proposes."""
        return 0 if self.from_anchor else 1

    @property
    def drafts(self) -> int:
        """Return the number of tokens that a draft block proposes."""
        return self.block_size - self.first_slot

    @property
    def draft_vocab_size(self) -> int:
        """Return the number of tokens in the draft vocabulary."""
        return len(self.short) or self.decoder.vocab_size

    def is_sliding(self, layer: int) -> bool:
        """Return whether a layer sees only a window of the context."""
        return self.window is not None and layer < len(self.sliding) and self.sliding[layer]

    def is_causal(self, layer: int) -> bool:
        """Return whether the slots of a draft block see only the slots before them in a layer."""
        return self.is_sliding(layer) if self.causal is None else self.causal


def check_config(config: DFlashConfig, subject: str) -> DFlashConfig:
    """Return the configuration unchanged; ModelError if its shape or its combination of heads is invalid."""
    c = config.decoder
    if not c.num_key_value_heads or c.num_attention_heads % c.num_key_value_heads or not c.num_attention_heads:
        raise ModelError(f"{subject}: {c.num_attention_heads} heads cannot share {c.num_key_value_heads} KV heads")
    if c.head_dim < 2 or c.head_dim % 2:
        raise ModelError(f"{subject}: head_dim {c.head_dim}: expected an even number")
    if not c.hidden_size or not c.vocab_size or not c.intermediate_size or config.block_size < 2 or not config.taps:
        raise ModelError(f"{subject}: a size is zero, the block has no slot, or there are no taps")
    if config.window is not None and len(config.sliding) != c.num_hidden_layers:
        raise ModelError(f"{subject}: sliding: expected {c.num_hidden_layers} flags, found {len(config.sliding)}")
    if config.logit_scale <= 0 or config.softcap < 0:
        raise ModelError(f"{subject}: invalid logit scale ({config.logit_scale}) or softcap ({config.softcap})")
    if any(later <= earlier for earlier, later in pairwise(config.short)):
        raise ModelError(f"{subject}: short vocabulary: ids are not ascending; {RETRAIN_VOCABULARY}")
    for token in (*config.short[:1], *config.short[-1:]):
        if not 0 <= token < c.vocab_size:
            raise ModelError(
                f"{subject}: short vocabulary: id {token} is outside 0 to {c.vocab_size - 1}; {RETRAIN_VOCABULARY}"
            )
    if problem := _invalid_heads(config):
        raise ModelError(f"{subject}: {problem}; use another drafter")
    return config


def _invalid_heads(config: DFlashConfig) -> str:
    """Return what is wrong with the Markov head, convolutions and selector, or ""."""
    c = config
    selector_sizes = (c.conv_kernel, c.conv_group, c.selector_rank, c.selector_top_k)
    cases = (
        (c.markov_rank and any(selector_sizes), "a Markov head together with DFlash 2"),
        (c.has_confidence_head and not c.markov_rank, "a confidence head without a Markov head (markov_rank)"),
        (c.markov_rank and (c.logit_scale, c.softcap) != (1.0, 0.0), "a Markov head with scaled logits"),
        (
            any(selector_sizes) and not all(selector_sizes),
            "only some of conv_kernel_size, conv_group_size, selector_rank and selector_top_k are set",
        ),
        (any(selector_sizes) and c.from_anchor, "a selector with sample_from_anchor"),
        _invalid_convolutions(c),
        (
            c.selector_top_k > c.draft_vocab_size,
            f"selector_top_k {c.selector_top_k} is above the {c.draft_vocab_size} tokens of the vocabulary",
        ),
    )
    return next((problem for is_invalid, problem in cases if is_invalid), "")


def _invalid_convolutions(config: DFlashConfig) -> tuple[bool, str]:
    kernel, group = config.conv_kernel, config.conv_group
    is_uneven = group and config.decoder.hidden_size % group
    is_invalid = bool(kernel) != bool(group) or kernel > config.block_size or is_uneven
    return bool(is_invalid), f"invalid convolutions (conv_kernel_size {kernel}, conv_group_size {group})"


def check_fit(config: DFlashConfig, hidden_size: int, vocab_size: int, layers: int, subject: str) -> None:
    """Raise ModelError if a drafter does not fit a target of this shape."""
    if config.decoder.hidden_size != hidden_size:
        raise ModelError(f"{subject}: hidden size {config.decoder.hidden_size}, but the target's is {hidden_size}")
    if config.decoder.vocab_size != vocab_size:
        raise ModelError(f"{subject}: vocabulary of {config.decoder.vocab_size}, but the target's has {vocab_size}")
    for tap in config.taps:
        if not 0 <= tap < layers - 1:
            raise ModelError(f"{subject}: taps layer {tap} (expected 0 to {layers - 2} of this target)")
    if not 0 <= config.mask_token_id < vocab_size:
        raise ModelError(f"{subject}: mask token {config.mask_token_id} is outside the vocabulary of {vocab_size}")
