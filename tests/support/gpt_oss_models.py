"""Small gpt-oss of Hugging Face with random weights, and its GGUF file."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import GptOssConfig, GptOssForCausalLM

from tests.support.converted_models import Case, hugging_face_shape, numbers_of, rounded_tensor
from tests.support.gguf_writing import names_of

INNER, LAYERS = 96, 4
EXPERTS, CHOSEN, WINDOW, CONTEXT = 6, 3, 24, 512
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 8.0,
    "beta_fast": 8.0,  # so that all three frequency ranges occur
    "beta_slow": 1.0,
    "original_max_position_embeddings": 64,
}
NUMBERS: dict[str, Any] = {
    "attention.sliding_window": WINDOW,
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 8.0,
    "rope.scaling.original_context_length": 64,
    "rope.scaling.yarn_beta_fast": 8.0,
    "rope.scaling.yarn_beta_slow": 1.0,
    "expert_count": EXPERTS,
    "expert_used_count": CHOSEN,
    "expert_feed_forward_length": INNER,
}


def case_of(kind: str = "F32", experts: str = "F32", llama_cpp: bool = False) -> Case:
    """Return a model whose weights survive quantization of matrices and experts to these types unchanged.

    `llama_cpp`: frequencies scaled as in llama.cpp, which rounds the bounds of their ranges, unlike the model, and
    has a fixed `beta_fast`.
    """
    config = GptOssConfig(
        **hugging_face_shape(LAYERS, CONTEXT, 1e-5),
        intermediate_size=INNER,
        num_local_experts=EXPERTS,
        num_experts_per_tok=CHOSEN,
        sliding_window=WINDOW,
        rope_parameters={**YARN, **({"truncate": True, "beta_fast": 32.0} if llama_cpp else {"truncate": False})},
        tie_word_embeddings=False,
        experts_implementation="eager",
    )
    model: Any = GptOssForCausalLM(config).float().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("norm.weight"):
                parameter.copy_(1 + 0.3 * noise)
            elif name.endswith("sinks"):
                parameter.copy_(2 * noise)
            elif name.endswith("bias"):
                parameter.copy_(noise)
            elif "experts" in name:  # [experts, inputs, outputs]; some exceed the limit of 7
                parameter.copy_(rounded_tensor(0.6 * noise.transpose(1, 2), experts).transpose(1, 2))
            else:
                parameter.copy_(0.2 * noise if "router" in name else rounded_tensor(0.2 * noise, kind))
    return Case(model, "gpt-oss", dict(_converted(model)), numbers_of(config) | NUMBERS)


def _converted(model: Any) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield (name, values), with the experts' interleaved gate and up apart."""
    names = names_of("gpt-oss", LAYERS)
    for key, parameter in model.named_parameters():
        values = parameter.detach()
        stem, _, end = key.rpartition(".")
        if "experts" in key:
            stem, end = f"{stem}.{end.removesuffix('_bias')}", "bias" if end.endswith("_bias") else "weight"
            values = values if end == "bias" else values.transpose(1, 2)
        elif end == "sinks":
            stem, end = key, "weight"
        parts = {stem: values}
        if "gate_up_proj" in stem:
            parts = {stem.replace("gate_up", "gate"): values[:, ::2], stem.replace("gate_up", "up"): values[:, 1::2]}
        for part, its in parts.items():
            found = names.get_name(part)
            assert found, key
            yield f"{found}.{end}", its.contiguous().numpy()
