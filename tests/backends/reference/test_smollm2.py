"""SmolLM2-135M-Instruct in Q4_1, the real file, against Hugging Face's own reader, model and tokenizer."""

from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from localdflash.backends.cpu.binding import open_target
from localdflash.backends.cpu.cpu_library import ThreadPool
from localdflash.backends.cpu.cpu_target import CpuTarget
from localdflash.backends.reference.decoder import causal
from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.engine.draft import Draft
from localdflash.models.weights.gguf import read_header
from localdflash.text.tokenizer import Tokenizer
from tests.backends.cpu.rounded import relative
from tests.support.smollm2 import FILE, needs_smollm2

pytestmark = [needs_smollm2, pytest.mark.nightly]
PROMPTS = (
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "In 1969, the first men landed on the moon. Their names were",
    "日本語 café 12345 \t {}[]();",
)


def hugging_face() -> Any:
    """Return the published model with the weights that transformers' own reader reads from the file."""
    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, head_dim=64, max_position_embeddings=8192, rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 1e5}, tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    tensors = load_gguf_checkpoint(str(FILE), return_tensors=True, model_to_load=model)["tensors"]
    model.load_state_dict(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"]})
    return model


@torch.inference_mode()
def test_logits_are_those_of_hugging_face() -> None:
    theirs, ours, tokenizer, pool = hugging_face(), load_decoder(FILE), Tokenizer.load(FILE), ThreadPool(2, ())
    packed = open_target(FILE)
    for prompt in PROMPTS:
        ids = tokenizer.encode(prompt)
        expected = theirs(torch.tensor([ids])).logits[0]
        actual = ours.logits(ours(torch.tensor([ids]), torch.arange(len(ids)), causal, ())[0])[0]
        assert relative(actual, expected) < 1e-5
        seen = CpuTarget(packed, pool).verify(ids[0], Draft("test", ids[1:], [1.0] * (len(ids) - 1)))
        assert relative(torch.from_numpy(seen.logits.copy()), expected) < 0.05  # activations of 8 bits
    pool.close()


def test_ids_are_those_of_the_published_pre_tokenizer() -> None:
    metadata = read_header(FILE).metadata
    spelled: Any = metadata["tokenizer.ggml.tokens"]
    merges: Any = metadata["tokenizer.ggml.merges"]
    vocabulary = {text: token for token, text in enumerate(spelled)}
    pairs = [tuple(merge.split(" ")) for merge in merges]
    theirs = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=pairs))
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Digits(individual_digits=True),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    ours, odd = Tokenizer.load(FILE), "Héllo — €12,345.67 ½ ٣٤٥ 日本語 한국어 עברית 😀👩‍👩‍👧 a\r\n\tb   c\n\n don't"
    for text in (*PROMPTS, odd, Path(__file__).read_text()):
        assert ours.encode(text) == theirs.encode(text).ids
