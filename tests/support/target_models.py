"""Small targets of random weights of every supported architecture, each with Hugging Face's model."""

from dataclasses import replace

from localdflash.backends.llamacpp.decode_flags import MAX_WIDTH, DecodeMode, Flags
from localdflash.backends.llamacpp.llama_target import EXPORTS_LAYER_INPUTS
from tests.support import converted_models, gemma4_models, gpt_oss_models, llama_cpp_models, qwen35_models
from tests.support.converted_models import Case

RECURRENT = ("qwen35", "qwen35moe", "lfm2", "lfm2moe")
ARCHITECTURES = ("qwen2", "qwen3", "qwen3moe", "llama", *RECURRENT, "gpt-oss", "gemma4", "mellum", "laguna")
WITHOUT_WAY_BACK = ("qwen3next",)  # recurrent, and llama.cpp saves no copies of their states


def case_of(architecture: str, kind: str = "F32") -> Case:
    """Return a model for llama.cpp whose weights survive quantization to `kind` unchanged."""
    match architecture:
        case "qwen35" | "qwen35moe" | "qwen3next":
            return qwen35_models.case_of(architecture, kind)
        case "gpt-oss":
            return gpt_oss_models.case_of(kind, kind, llama_cpp=True)
        case "gemma4":
            return gemma4_models.case_of(kind)
        case "mellum" | "laguna" | "lfm2" | "lfm2moe":
            return llama_cpp_models.case_of(architecture, kind)
    return converted_models.case_of(architecture, kind)


def taps_of(architecture: str) -> tuple[int, ...]:
    """Return the blocks whose outputs tests compare; none if llama.cpp exports none of this architecture."""
    return (0, 1) if architecture in EXPORTS_LAYER_INPUTS else ()


# Modes of llama.cpp for comparison with other engines: nothing is rounded between batches.
WIDE = DecodeMode(Flags(repack=False, flash=False, keys="f32", values="f32"), tuple(range(2, MAX_WIDTH + 1)))
# Mode without filler rows, for models whose states cannot be rolled back.
NO_FILLERS = replace(WIDE, widths=tuple(range(1, MAX_WIDTH + 1)))
