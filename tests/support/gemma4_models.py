"""Small Gemma 4 of Hugging Face with random weights, and its GGUF file."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers.models.gemma4.configuration_gemma4 import Gemma4TextConfig
from transformers.models.gemma4.modeling_gemma4 import Gemma4ForCausalLM

from tests.support.converted_models import (
    HEAD_DIM,
    KV_HEADS,
    VOCABULARY,
    Case,
    hugging_face_shape,
    numbers_of,
    rounded_tensor,
)
from tests.support.gguf_writing import names_of, tensor_name

LAYERS, WINDOW = 4, 24
GLOBAL_KV_HEADS, GLOBAL_HEAD_DIM = 1, 64  # of layers without a window
SLIDES = [True, False, True, False]
TURNED = 0.25  # rotated part of a head in layers without a window
CAP = 5.0  # of logits, low enough to have an effect
SHAPE: dict[str, Any] = hugging_face_shape(LAYERS, 512, 1e-6) | {"intermediate_size": 96}
NUMBERS: dict[str, Any] = {
    "embedding_length_per_layer_input": 0,
    "final_logit_softcapping": CAP,
    "attention.head_count_kv": [KV_HEADS if slides else GLOBAL_KV_HEADS for slides in SLIDES],
    "attention.key_length": GLOBAL_HEAD_DIM,
    "attention.value_length": GLOBAL_HEAD_DIM,
    "attention.key_length_swa": HEAD_DIM,
    "attention.value_length_swa": HEAD_DIM,
    "attention.shared_kv_layers": 0,
    "attention.sliding_window": WINDOW,
    "attention.sliding_window_pattern": SLIDES,
    "rope.dimension_count": GLOBAL_HEAD_DIM,
    "rope.dimension_count_swa": HEAD_DIM,
    "rope.freq_base": 1e5,
    "rope.freq_base_swa": 1e4,
}


def case_of(kind: str = "F32") -> Case:
    """Return a model whose weights survive quantization to a type unchanged; full-attention layers share K and V."""
    config = Gemma4TextConfig(
        **SHAPE,
        global_head_dim=GLOBAL_HEAD_DIM,
        num_global_key_value_heads=GLOBAL_KV_HEADS,
        attention_k_eq_v=True,
        sliding_window=WINDOW,
        layer_types=["sliding_attention" if slides else "full_attention" for slides in SLIDES],
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": TURNED, "rope_theta": 1e5},
        },
        final_logit_softcapping=CAP,
        hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=VOCABULARY,
    )
    model: Any = Gemma4ForCausalLM(config).float().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for _, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.3 * noise if parameter.ndim == 1 else rounded_tensor(0.2 * noise, kind))
        for layer in model.model.layers:
            layer.layer_scalar.fill_(0.5 + float(torch.rand(1, generator=generator)))
    case = Case(model, "gemma4", dict(_converted(model)), numbers_of(SimpleNamespace(**SHAPE)) | NUMBERS)
    turned = int(GLOBAL_HEAD_DIM * TURNED / 2)
    case.tensors["rope_freqs.weight"] = np.array([1.0] * turned + [1e30] * (GLOBAL_HEAD_DIM // 2 - turned), np.float32)
    return case


def _converted(model: Any) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield (name, values), scales of layers among them."""
    names = names_of("gemma4", LAYERS)
    for key, values in model.state_dict().items():
        if not key.startswith("lm_head"):
            yield tensor_name(names, key), values.detach().contiguous().numpy()
