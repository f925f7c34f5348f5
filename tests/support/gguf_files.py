"""Valid model files, written by the reference writers, and llama.cpp's own GGUF parser as an oracle."""

import ctypes
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.gguf_writing import finish

# Byte offsets of the half-precision scales in a block.
HALF_SCALES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "MXFP4": (),
}


def write_header(path: Path, *tokens: str, name: str = "") -> Path:
    """Write a file that contains only a vocabulary of these tokens."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(name)
    writer.add_token_list(list(tokens))
    finish(writer)
    return path


def random_blocks(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Return the bytes of a random tensor [..., n, row], with scales of either sign, of about a hundredth."""
    *lead, k = shape
    if kind in ("F32", "F16", "BF16"):
        raw = rng.normal(0, 0.1, shape).astype(np.float16 if kind == "F16" else np.float32).view(np.uint8)
        return raw if kind != "BF16" else np.ascontiguousarray(raw.reshape(*shape, 4)[..., 2:]).reshape(*lead, -1)
    weights, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    blocks = rng.integers(0, 256, (*lead, k // weights, size), dtype=np.uint8)
    for start in HALF_SCALES.get(kind, ()):
        scales = rng.normal(0, 0.01, blocks.shape[:-1]).astype(np.float16)
        blocks[..., start : start + 2] = scales[..., np.newaxis].view(np.uint8)
    if kind == "MXFP4":
        blocks[..., 0] = rng.integers(119, 124, blocks.shape[:-1])
    if kind == "NVFP4":
        blocks[..., :4] &= 127
    return blocks.reshape(*lead, -1)


class InitParams(ctypes.Structure):
    """`struct gguf_init_params`."""

    _fields_ = [("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p)]


@pytest.fixture(scope="session")
def ggml() -> ctypes.CDLL:
    """Load the library with llama.cpp's GGUF parser and table of types."""
    spec = find_spec("llama_cpp")
    roots = spec.submodule_search_locations if spec and spec.submodule_search_locations else []
    names = ("libggml-base.so", "libggml-base.dylib", "ggml-base.dll")
    found = [Path(root) / "lib" / name for root in roots for name in names if (Path(root) / "lib" / name).exists()]
    if not found:
        pytest.skip("llama_cpp has no separate ggml library here")
    library = ctypes.CDLL(str(found[0]))
    library.gguf_init_from_file.argtypes = [ctypes.c_char_p, InitParams]
    library.gguf_init_from_file.restype = ctypes.c_void_p
    library.gguf_free.argtypes = [ctypes.c_void_p]
    library.ggml_type_size.restype = ctypes.c_size_t
    library.ggml_blck_size.restype = ctypes.c_int64
    library.ggml_type_name.restype = ctypes.c_char_p
    return library


@pytest.fixture(scope="session")
def c_parser_accepts(ggml: ctypes.CDLL) -> Callable[[Path], bool]:
    def accepts(path: Path) -> bool:
        context = ggml.gguf_init_from_file(bytes(path), InitParams(no_alloc=True, ctx=None))
        ggml.gguf_free(context)
        return context is not None

    return accepts


@pytest.fixture(scope="session")
def small_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a valid file of about a kilobyte with every kind of value, by the reference writer."""
    path = tmp_path_factory.mktemp("valid") / "small.gguf"
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_uint8("u8", 200)
    writer.add_int8("i8", -100)
    writer.add_uint16("u16", 60_000)
    writer.add_int16("i16", -30_000)
    writer.add_uint32("qwen3.large", 4_000_000_000)
    writer.add_int32("i32", -2_000_000_000)
    writer.add_uint64("u64", 2**63 + 1)
    writer.add_int64("i64", -(2**62))
    writer.add_float32("qwen3.rope.freq_base", 1e6)
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_bool("no", False)
    writer.add_string("tokenizer.chat_template", "{{ m }}\n\0 é 錯 😋")
    writer.add_array("tokenizer.ggml.tokens", ["a", "Ġb", "", "😋"])
    writer.add_array("ints", [1, -2, 3])
    writer.add_array("floats", [0.5, -1.5])
    writer.add_array("bools", [True, False])
    writer.add_array("nothing", [])
    writer.add_tensor("norm.weight", np.arange(5, dtype=np.float32))
    writer.add_tensor("matrix.weight", np.arange(6, dtype=np.float16).reshape(2, 3))
    writer.add_tensor("cube", np.arange(8, dtype=np.float32).reshape(2, 2, 2))
    finish(writer)
    return path
