"""Small targets of random weights of every architecture that pairs are made of, with Hugging Face's model of each."""

from tests.support import converted_models, gemma4_models, gpt_oss_models, qwen35_models
from tests.support.converted_models import Case

RECURRENT = ("qwen35", "qwen35moe")
ARCHITECTURES = ("qwen3", "qwen3moe", "llama", *RECURRENT, "gpt-oss", "gemma4")
WITHOUT_WAY_BACK = ("qwen3next",)  # recurrent, and llama.cpp keeps no copies of their states


def case_of(architecture: str, kind: str = "F32") -> Case:
    """A model as llama.cpp reads it, whose weights survive quantization to a type unchanged."""
    match architecture:
        case "qwen35" | "qwen35moe" | "qwen3next":
            return qwen35_models.case_of(architecture, kind)
        case "gpt-oss":
            return gpt_oss_models.case_of(kind, kind, llama_cpp=True)
        case "gemma4":
            return gemma4_models.case_of(kind)
    return converted_models.case_of(architecture, kind)
