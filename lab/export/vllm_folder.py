"""Write a local pair as two folders that vLLM loads: the target in float32 with its tokenizer, and the drafter.

For pairs that no hub has as safetensors: the embedded pair, and pairs trained on this machine.
"""

from pathlib import Path
from typing import Any

from safetensors.torch import save
from tokenizers import AddedToken, Tokenizer, decoders

from localdflash.backends.reference import dflash_files
from localdflash.backends.reference.dflash_model import DFlash
from localdflash.backends.reference.gguf_decoder import load_decoder
from localdflash.base.errors import ModelError, UsageError
from localdflash.lab.export.launch_commands import MISREADS_ANCHOR, LaunchCommand, vllm_serve
from localdflash.lab.train.pair_export import write_drafter_safetensors, write_json
from localdflash.models.registry.pair_entry import LocalPair
from localdflash.models.shapes.decoder_config import DecoderConfig
from localdflash.models.shapes.gguf_config import decoder_config
from localdflash.models.weights.gguf import GGUFHeader, read_header
from localdflash.text.gguf_vocabulary import GGUFVocabulary, byte_level_tokenizer, open_vocabulary

ARCHITECTURES = {"qwen3": "Qwen3ForCausalLM", "llama": "LlamaForCausalLM"}  # GGUF name to Hugging Face name


def write_pair(pair: LocalPair, folder: Path, draft_tokens: int | None, context: int | None) -> LaunchCommand:
    """Write the folders `target` and `drafter`, and return the command that serves them.

    Before anything is written: ModelError if vLLM cannot run the target or the drafter, UsageError for draft
    tokens without a drafter, or for too many.
    """
    header = read_header(pair.target)
    config = decoder_config(header)
    vocabulary, tokenizer = _open_tokenizer(header, config)
    file = pair.drafter_safetensors or pair.drafter_gguf
    drafter = _load_drafter(file) if file else None
    max_tokens = drafter.config.drafts if drafter else 0
    if draft_tokens and not drafter:
        raise UsageError(f"--draft-tokens: no drafter is known for {pair.id!r}; name one with --drafter")
    if draft_tokens and draft_tokens > max_tokens:
        raise UsageError(f"--draft-tokens {draft_tokens}: the drafter of {pair.id!r} drafts at most {max_tokens}")
    target_folder, drafter_folder = folder.absolute() / "target", folder.absolute() / "drafter"
    _write_target(header, config, target_folder)
    _write_tokenizer(vocabulary, tokenizer, target_folder)
    sampling = pair.sampling or {"temperature": 0.0}  # greedy, unless the model recommends parameters, like our chat
    write_json(target_folder / "generation_config.json", {"eos_token_id": sorted(vocabulary.end_ids), **sampling})
    if not drafter:
        return vllm_serve(str(target_folder), "", 0, context)
    drafter_folder.mkdir(parents=True, exist_ok=True)
    write_drafter_safetensors(drafter_folder / "model.safetensors", drafter, config.num_hidden_layers)
    return vllm_serve(str(target_folder), str(drafter_folder), draft_tokens or max_tokens, context)


def _open_tokenizer(header: GGUFHeader, config: DecoderConfig) -> tuple[GGUFVocabulary, Tokenizer]:
    """Return vocabulary and tokenizer of a target; ModelError if target or tokenizer cannot be written."""
    if header.architecture not in ARCHITECTURES or config.num_experts or config.rope_factors:
        raise ModelError(f"{header.path}: expected a dense Qwen3 or Llama without RoPE scaling; export its repository")
    vocabulary = open_vocabulary(header)
    tokenizer = vocabulary and byte_level_tokenizer(header, vocabulary.ids)
    if not vocabulary or not tokenizer:
        raise ModelError(f"{header.path}: expected a byte-level BPE vocabulary; export its repository")
    return vocabulary, tokenizer


def _load_drafter(file: Path) -> DFlash:
    model = dflash_files.load(file)
    if model.config.kind != "dflash":
        raise ModelError(f"{file}: cannot write {model.config.kind} drafters for vLLM; export a published drafter")
    if model.config.from_anchor:
        raise ModelError(f"{file}: vLLM {MISREADS_ANCHOR}")
    return model


def _write_target(header: GGUFHeader, config: DecoderConfig, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {f"model.{name}": tensor.contiguous() for name, tensor in load_decoder(header.path).state_dict().items()}
    head = tensors.pop("model.lm_head.weight")
    if not config.tie_word_embeddings:
        tensors["lm_head.weight"] = head
    (folder / "model.safetensors").write_bytes(save(tensors, metadata={"format": "pt"}))
    write_json(folder / "config.json", _config_fields(header.architecture, config))


def _write_tokenizer(vocabulary: GGUFVocabulary, tokenizer: Tokenizer, folder: Path) -> None:
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(token.text, special=True, normalized=False) for token in vocabulary.special_tokens]
    tokenizer.add_special_tokens(special)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", _tokenizer_fields(vocabulary))


def _config_fields(architecture: str, config: DecoderConfig) -> dict[str, Any]:
    """Return the fields of the target's config.json."""
    return {
        "architectures": [ARCHITECTURES[architecture]],
        "model_type": architecture,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.context_length,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tie_word_embeddings,
        "attention_bias": config.attention_bias,
        "dtype": "float32",
    }


def _tokenizer_fields(vocabulary: GGUFVocabulary) -> dict[str, Any]:
    """Return the fields of tokenizer_config.json."""
    template = vocabulary.metadata("tokenizer.chat_template")
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": vocabulary.decode_token(vocabulary.eos_id, special=True).decode(),
        "clean_up_tokenization_spaces": False,
        **({"chat_template": template} if template else {}),
    }
