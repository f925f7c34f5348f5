"""Forward pass of a drafter over blocks with stored features, loss, and tokens per verify step.

Features are divided by the RMS of their channels (`sizes`) before `fc`; an export folds this into `fc`. All blocks of
draft slots of a sequence share one context and do not attend to each other.
"""

from pathlib import Path

import torch
from torch import Tensor, nn

from localdflash.backends.reference.decoder import Layer, RMSNorm, rotary
from localdflash.backends.reference.dflash_model import DFlash
from localdflash.backends.reference.gguf_decoder import layer_state
from localdflash.base.errors import UsageError
from localdflash.lab.train.batched_answers import CONTEXT
from localdflash.lab.train.draft_blocks import Blocks
from localdflash.models.shapes.dflash_config import DFlashConfig
from localdflash.models.shapes.gguf_config import decoder_config
from localdflash.models.weights import gguf
from localdflash.models.weights.quants import dequantize

INITIAL_NORM_SCALE = 0.3  # factor on the target's last norm, so that an untrained drafter has low confidence
SOFT_LABEL_SHARE = 0.75  # share of the loss on the target's likeliest tokens; the remainder is on the chosen token
SMOOTHING = 0.5  # of the D-PACE loss: weight of a slot after a certainly wrong slot


class TensorRows:
    """Matrix of a memory-mapped file whose rows are dequantized on access."""

    def __init__(self, header: gguf.GGUFHeader, name: str) -> None:
        info = gguf.find(header, name)
        self._type, self._columns = info.ggml_type, info.shape[1]
        self._rows = gguf.load_blocks(header, name).view(info.shape[0], -1)  # bytes

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Return the rows with these indices, int64 [n], as float32 [n, columns]."""
        return dequantize(self._rows[rows], self._type, (len(rows), self._columns))


class FrozenTarget:
    """Parts of the target that a drafter uses: embedding, head of the short vocabulary [S], norm, last layers."""

    def __init__(self, path: Path, short: Tensor, device: str = "cpu") -> None:
        header = gguf.read_header(path)
        self.config = decoder_config(header)
        embedding = TensorRows(header, "token_embd.weight")
        tied = self.config.tie_word_embeddings
        self.head = (embedding if tied else TensorRows(header, "output.weight"))[short].to(device)  # [S, H]
        on_cpu = device == "cpu"
        self.embedding = embedding if on_cpu else gguf.load_tensor(header, "token_embd.weight").to(device)
        self.norm = gguf.load_tensor(header, "output_norm.weight")
        self._header = header

    def last_layers(self, count: int) -> list[dict[str, Tensor]]:
        """Return the parameters of the target's last `count` layers."""
        layers = self.config.num_hidden_layers
        return [layer_state(self._header, self.config, number) for number in range(layers - count, layers)]


def check_trainable(config: DFlashConfig) -> None:
    """Raise UsageError for a drafter that cannot be exported, or whose blocks do not attend to a whole answer."""
    scaled = (config.embedding_scale, config.logit_scale, config.softcap) != (1.0, 1.0, 0.0)
    if config.kind != "dflash" or config.own_embedding or config.own_head or config.decoder.rope_factors or scaled:
        raise UsageError(
            "drafter: DSpark, DFlash 2, YaRN, scaled embeddings or logits, and separate heads are not supported in"
            " training; start from another drafter"
        )
    if (config.window or CONTEXT) < CONTEXT or any(map(config.is_causal, range(config.decoder.num_hidden_layers))):
        raise UsageError(
            f"drafter: causal layers and windows below {CONTEXT} cannot be trained; start from another drafter"
        )


def start_from(frozen: FrozenTarget, config: DFlashConfig, sizes: Tensor) -> DFlash:
    """Return a new drafter whose layers are copies of the target's last layers; a mixture of experts gets new MLPs.

    Its context projection initially passes on the last tapped feature. `sizes` [width] is the RMS of the channels.
    """
    check_trainable(config)
    drafter, hidden = DFlash(config), config.decoder.hidden_size
    last = frozen.last_layers(config.decoder.num_hidden_layers)
    with torch.no_grad():
        for layer_of_drafter, layer_of_target in zip(drafter.layers, last, strict=True):
            missing = layer_of_drafter.load_state_dict(layer_of_target, strict=False)
            untrained = ("q_norm", "k_norm", "mlp.") if frozen.config.num_experts else ("q_norm", "k_norm")
            assert all(any(part in name for part in untrained) for name in missing.missing_keys)
        drafter.norm.weight.copy_(frozen.norm * INITIAL_NORM_SCALE)
        drafter.hidden_norm.weight.copy_(last[0]["input_layernorm.weight"])
        nn.init.normal_(drafter.fc.weight, std=0.02)
        ending = sizes[-hidden:]
        drafter.fc.weight[:, -hidden:] += torch.diag(ending / ending.square().mean().sqrt())
    return drafter


def fit_head_norms(drafter: DFlash, frozen: FrozenTarget, blocks: Blocks, sizes: Tensor) -> None:
    """Initialise the query and key norms, which a Llama lacks, to the RMS of the drafter's queries and keys."""
    with torch.no_grad():
        fused = drafter.hidden_norm(drafter.fc(blocks.taps / sizes))
        rows = frozen.embedding[blocks.first[0]]
        for layer in drafter.layers:
            assert isinstance(layer, Layer)
            attention = layer.self_attn
            queries, keys = attention.q_norm, attention.k_norm
            assert isinstance(queries, RMSNorm)
            assert isinstance(keys, RMSNorm)
            if queries.weight.unique().numel() > 1:
                continue  # loaded from a Qwen3
            for norm, x in ((queries, attention.q_proj(layer.input_layernorm(rows))), (keys, attention.k_proj(fused))):
                heads = x.unflatten(-1, (-1, drafter.config.decoder.head_dim))
                norm.weight.fill_(float(heads.square().mean(-1).sqrt().mean()))


def hidden_of(drafter: DFlash, frozen: FrozenTarget, blocks: Blocks, sizes: Tensor) -> Tensor:
    """Return the normed hidden states [B * N, drafts, H] of the slots that propose tokens."""
    config, anchors, device = drafter.config, blocks.anchors.flatten(), blocks.anchors.device
    context = drafter.context((blocks.taps / sizes).unsqueeze(0), blocks.positions)
    slot_positions = anchors.unsqueeze(1) + torch.arange(config.block_size, device=device)
    cos, sin = rotary(slot_positions, config.decoder.head_dim, config.decoder.rope_theta)
    unseen = torch.arange(blocks.rows.shape[1], device=device) >= blocks.anchors.unsqueeze(-1)  # [B, N, longest]
    masked = torch.full((1,), config.mask_token_id, device=device)
    anchor, mask = frozen.embedding[blocks.first.flatten()], frozen.embedding[masked]
    slots = mask.expand(len(anchors), config.block_size - 1, -1)
    x = torch.cat((anchor.unsqueeze(1), slots), 1) * config.embedding_scale
    for number, layer in enumerate(drafter.layers):
        assert isinstance(layer, Layer)
        first = config.first_slot if number == len(drafter.layers) - 1 else 0
        q, k, v = layer.self_attn.project(layer.input_layernorm(x), cos, sin)
        keys, values = (pad_context(each, blocks.rows) for each in context[number])
        heads = attend(q[:, :, first:], k, v, keys, values, unseen)
        x = x[:, first:] + layer.self_attn.merge(heads)
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return drafter.norm(x)


def pad_context(x: Tensor, rows: Tensor) -> Tensor:
    """Select the `rows` [B, longest] of x [1, kv_heads, T, hd]; return [B, kv_heads, longest, hd]."""
    return x[0].index_select(1, rows.flatten()).unflatten(1, rows.shape).transpose(0, 1)


def attend(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, unseen: Tensor) -> Tensor:
    """Attend from q [B * N, heads, S, hd] to the visible context and to the same block; return the shape of q.

    k, v: [B * N, kv_heads, block, hd]; `keys`, `values`: those of the context, [B, kv_heads, T, hd]; `unseen`
    [B, N, T] masks the context.
    """
    blocks, length, kv_heads = unseen.shape[:2], unseen.shape[2], k.shape[1]
    queries = q.reshape(*blocks, kv_heads, -1, q.shape[-1])  # [B, N, kv_heads, group * S, hd]
    flat = queries.transpose(1, 2).flatten(2, 3)
    context_scores = (flat @ keys.mT).unflatten(2, (blocks[1], -1)).transpose(1, 2)
    context_scores = context_scores.masked_fill(unseen[:, :, None, None], -torch.inf)
    block_scores = queries @ k.unflatten(0, blocks).mT
    weights = (torch.cat((context_scores, block_scores), -1) * q.shape[-1] ** -0.5).softmax(-1)
    over_context = weights[..., :length].transpose(1, 2).flatten(2, 3) @ values
    over_context = over_context.unflatten(2, (blocks[1], -1)).transpose(1, 2)
    return (over_context + weights[..., length:] @ v.unflatten(0, blocks)).reshape(q.shape)


def logits_of(drafter: DFlash, frozen: FrozenTarget, blocks: Blocks, sizes: Tensor) -> Tensor:
    """Return the logits [B, N, drafts, S] over the short vocabulary."""
    hidden = hidden_of(drafter, frozen, blocks, sizes).unflatten(0, blocks.anchors.shape)
    return drafter.logits(hidden, frozen.head)


def weighted_loss(logits: Tensor, blocks: Blocks) -> tuple[Tensor, Tensor]:
    """Return the sum of weighted cross-entropies, and the sum of their weights.

    Each loss mixes that of the token that the target chose with that of the shares of the likeliest tokens, if stored.
    The weight of a slot is its effect on the expected number of accepted tokens (D-PACE, arXiv 2605.18810): the
    smoothed probability that all labels up to a slot are right, summed over this slot and the later ones.
    """
    labels = blocks.labels
    wanted = torch.cat((labels.clamp_min(0).unsqueeze(-1), blocks.likely), -1)
    losses = -logits.log_softmax(-1).gather(-1, wanted)  # once: its gradient is as large as the logits
    chosen, shared = losses[..., 0], (blocks.shares * losses[..., 1:]).sum(-1)
    each = chosen.lerp(shared, SOFT_LABEL_SHARE)
    with torch.no_grad():
        likely = torch.where(labels >= 0, torch.exp(-chosen), 0.0) * (1 - SMOOTHING) + SMOOTHING
        reach = torch.where(labels == -1, 0.0, likely.cumprod(-1))
        weights = torch.where(labels >= 0, reach.flip(-1).cumsum(-1).flip(-1), 0.0)
    return (each * weights).sum(), weights.sum()


def count_accepted(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the number of drafted tokens of each block [B, N] that the target would accept."""
    return (logits.argmax(-1) == labels).long().cumprod(-1).sum(-1)


def count_verify_steps(accepted_at: Tensor) -> int:
    """Return the verify steps of an answer of N tokens if a draft at token i has `accepted_at`[i] right tokens."""
    position, count, lengths = 0, 0, accepted_at.tolist()
    while position < len(lengths):
        position, count = position + lengths[position] + 1, count + 1
    return count
