"""How a pair is to be run: the argument of every backend's `load` besides the pair's files."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from localdflash.engine.controller import Controller
from localdflash.engine.pair import Drafter, Target
from localdflash.models.backend_names import Backend, RowsMode

Progress = Callable[[int, int], None]  # bytes done, bytes in all
Compiling = Callable[[int, int], None]  # kernels compiled, kernels in all
Costs = Callable[[Target, Sequence[Drafter]], Controller]


@dataclass(frozen=True)
class Options:
    """Zeros mean what the model and the machine suggest; of `gpu_layers`, -1 does.

    "auto" is CUDA where that can run the pair, else llama.cpp on a GPU, else our own CPU engine or llama.cpp, whichever
    is faster here.
    """

    pair: str = "embedded"
    backend: Backend = "auto"
    threads: int = 0
    context: int = 0
    draft: bool = True
    drafter_bits: int = 8  # 8 or 4, of drafters on our engines: CPU floats and Q8_0, CUDA safetensors
    native_fp4: bool = False  # multiply in FP4 on Blackwell RTX: rounds activations too, so another text
    device: str = "auto"  # "cpu", "gpu" (the best one), or a GPU as CUDA or llama.cpp call it; auto: see `loading`
    gpu_layers: int = -1  # of llama.cpp's target on that GPU, the head counted as one; -1: what fits
    rows: RowsMode = "auto"  # of llama.cpp: "exact" is certified identity at any price, "fast" is none
    drafter: str = ""  # another one than the pair's: a path, or an hf: name
    kv: str = "f16"  # type of our own engines' KV cache: f16 or int8, on CUDA also fp8
    roomy: bool = field(default=False, compare=False)  # OutOfMemory where it would be cramped
    progress: Progress | None = None
    compiling: Compiling | None = None
    costs: Costs | None = None  # what a verify and a draft cost on a processor; None: they are measured at load
