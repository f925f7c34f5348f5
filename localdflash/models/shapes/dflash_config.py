"""The configuration of a drafter of the DFlash family: its shape and conventions, and whether it fits a target.

`dflash_file` reads it from the files of each format. Every field of the formats is honoured or refused by name, so a
drafter that would run wrong does not load. Imports no torch: llama.cpp's drafter needs it too.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from localdflash.base.errors import ModelError
from localdflash.models.shapes.decoder_config import DecoderConfig
from localdflash.models.shapes.fingerprint import TrainedFor

OURS = "localdflash"
ANOTHER_LIST = "make it again with `localdflash train vocabulary`"
SHORT_KEY = f"{OURS}.short_vocabulary"
SHORT_HEAD = ("d2t", "output.weight")  # tensors of a GGUF: the ids of the rows of a head, and these rows

Kind = Literal["dflash", "dflash2", "dspark"]


@dataclass(frozen=True)
class DFlashConfig:
    """Shape and conventions of one drafter checkpoint."""

    decoder: DecoderConfig  # num_hidden_layers are the drafter's own
    block_size: int
    mask_token_id: int
    taps: tuple[int, ...]  # 0-based target blocks whose output is read
    window: int | None = None  # of the sliding layers, the query's own slot included
    sliding: tuple[bool, ...] = ()  # per layer; empty: none
    causal: bool | None = None  # inside the block; None: sliding layers causal, full layers bidirectional
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    softcap: float = 0.0
    from_anchor: bool = False  # the anchor's slot proposes too: each slot the token behind it, not its own
    short: tuple[int, ...] = ()  # the tokens that it proposes from, ascending; empty: all
    trained_for: TrainedFor | None = None
    own_embedding: bool = False  # instead of the target's
    own_head: bool = False  # a row for each token that it proposes from
    markov_rank: int = 0  # of DSpark: each slot's logits depend on the token before it; 0: they do not
    judges: bool = False  # DSpark's confidence head: how likely it is that the target agrees
    conv_kernel: int = 0  # of DFlash 2: taps of the local convolutions; 0: there are none
    conv_group: int = 0  # channels that share a coefficient
    selector_rank: int = 0  # of DFlash 2: a slot's best candidates are scored by the token before it; 0: they are not
    selector_top_k: int = 0  # candidates

    @property
    def kind(self) -> Kind:
        """What is put on top of a DFlash drafter: the Markov head of DSpark, the selector of DFlash 2, or nothing."""
        if self.selector_rank:
            return "dflash2"
        return "dspark" if self.markov_rank else "dflash"

    @property
    def first_slot(self) -> int:
        """Return the first slot that proposes."""
        return 0 if self.from_anchor else 1

    @property
    def drafts(self) -> int:
        """Return how many tokens a block proposes."""
        return self.block_size - self.first_slot

    @property
    def proposed(self) -> int:
        """Return how many tokens it proposes from."""
        return len(self.short) or self.decoder.vocab_size

    def is_sliding(self, layer: int) -> bool:
        """Return whether a layer sees only a window of the context."""
        return self.window is not None and layer < len(self.sliding) and self.sliding[layer]

    def is_causal(self, layer: int) -> bool:
        """Return whether a layer's block rows see only the rows before them."""
        return self.is_sliding(layer) if self.causal is None else self.causal


def checked(config: DFlashConfig, where: str) -> DFlashConfig:
    """Return the configuration, if a network can have this shape; else ModelError."""
    c = config.decoder
    if not c.num_key_value_heads or c.num_attention_heads % c.num_key_value_heads or not c.num_attention_heads:
        raise ModelError(f"{where}: {c.num_attention_heads} heads cannot share {c.num_key_value_heads} key/value heads")
    if c.head_dim < 2 or c.head_dim % 2:
        raise ModelError(f"{where}: head_dim {c.head_dim}: expected an even number")
    if not c.hidden_size or not c.vocab_size or not c.intermediate_size or config.block_size < 2 or not config.taps:
        raise ModelError(f"{where}: a size is zero, or the block holds no slot, or there are no taps")
    if config.window is not None and len(config.sliding) != c.num_hidden_layers:
        raise ModelError(f"{where}: sliding layers are told for {len(config.sliding)} of {c.num_hidden_layers} layers")
    if config.logit_scale <= 0 or config.softcap < 0:
        raise ModelError(f"{where}: logits scaled by {config.logit_scale} and capped at {config.softcap} make no sense")
    if any(later <= earlier for earlier, later in pairwise(config.short)):
        raise ModelError(f"{where}: the ids of its short vocabulary do not ascend; {ANOTHER_LIST}")
    for token in (*config.short[:1], *config.short[-1:]):
        if not 0 <= token < c.vocab_size:
            raise ModelError(
                f"{where}: id {token} of its short vocabulary is not one of {c.vocab_size}; {ANOTHER_LIST}"
            )
    if wrong := _wrong_heads(config):
        raise ModelError(f"{where}: {wrong}: no such drafter is known")
    return config


def _wrong_heads(config: DFlashConfig) -> str:
    """Return what of a Markov head, convolutions and selector makes no sense, or ""."""
    c = config
    second = (c.conv_kernel, c.conv_group, c.selector_rank, c.selector_top_k)
    uneven = c.conv_group and c.decoder.hidden_size % c.conv_group
    cases = (
        (c.markov_rank and any(second), "it has a Markov head and what DFlash 2 has"),
        (c.judges and not c.markov_rank, "it has a confidence head, but no Markov head (markov_rank)"),
        (c.markov_rank and (c.logit_scale, c.softcap) != (1.0, 0.0), "it has a Markov head and scaled logits"),
        (
            any(second) and not all(second),
            "conv_kernel_size, conv_group_size, selector_rank and selector_top_k are told in part",
        ),
        (any(second) and c.from_anchor, "it has a selector, and its anchor proposes (sample_from_anchor)"),
        (
            c.conv_kernel > c.block_size or uneven,
            f"it has convolutions (conv_kernel_size {c.conv_kernel}, conv_group_size {c.conv_group})",
        ),
        (c.selector_top_k > c.proposed, f"it has {c.selector_top_k} candidates of {c.proposed} tokens"),
    )
    return next((said for is_so, said in cases if is_so), "")


def check_fit(config: DFlashConfig, hidden_size: int, vocab_size: int, blocks: int, where: str) -> None:
    """Raise ModelError if a drafter does not fit a target of this shape, naming what does not."""
    if config.decoder.hidden_size != hidden_size:
        raise ModelError(f"{where}: hidden size {config.decoder.hidden_size}, but the target's is {hidden_size}")
    if config.decoder.vocab_size != vocab_size:
        raise ModelError(f"{where}: vocabulary of {config.decoder.vocab_size}, but the target's has {vocab_size}")
    for tap in config.taps:
        if not 0 <= tap < blocks - 1:
            raise ModelError(f"{where}: taps block {tap}, but the target has blocks 0 to {blocks - 2} to tap")
    if not 0 <= config.mask_token_id < vocab_size:
        raise ModelError(f"{where}: mask token {config.mask_token_id} is outside the vocabulary of {vocab_size}")
