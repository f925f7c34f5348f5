"""Options of every backend's `load`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from localdflash.models.backend_names import Backend, RowsMode

if TYPE_CHECKING:  # clients of the daemon read options without loading numpy
    from localdflash.engine.controller import Controller
    from localdflash.engine.pair import Drafter, Target

Progress = Callable[[int, int], None]  # bytes done, total bytes
Compiling = Callable[[int, int], None]  # kernels compiled, total kernels
Costs = Callable[["Target", Sequence["Drafter"]], "Controller"]


@dataclass(frozen=True)
class Options:
    """Options of a pair; 0 (-1 of `gpu_layers`): the best value for the model and the machine."""

    pair: str = "embedded"
    backend: Backend = "auto"
    threads: int = 0
    context: int = 0
    draft: bool = True
    drafter_bits: int = 8  # 8 or 4 bits for drafters on our engines (CPU: floats and Q8_0; CUDA: safetensors)
    native_fp4: bool = False  # multiply in FP4 on Blackwell RTX; changes the text
    device: str = "auto"  # "cpu", "gpu" (the best one), or a GPU as CUDA or llama.cpp call it; auto: see `loading`
    gpu_layers: int = -1  # layers of llama.cpp's target on that GPU, including the head; -1: as many as fit
    rows: RowsMode = "auto"  # batch widths of llama.cpp: "exact" at any cost, "fast" without a guarantee
    drafter: str = ""  # path or hf: name of the drafter that replaces the pair's drafter
    kv: str = "auto"  # KV cache type, see `KV_BACKENDS`; auto: f16, on the CPU engine the registry entry's
    cuda_ops: str = ""  # forms of the CUDA engine's operations; see `backends.cuda.choices`
    can_evict: bool = field(default=False, compare=False)  # raise OutOfMemory instead of reducing drafter or context
    progress: Progress | None = None
    compiling: Compiling | None = None
    costs: Costs | None = None  # returns known costs of verify batches and drafts; None: they are measured at load
