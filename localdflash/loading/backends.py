"""The backends' loads by name. A backend is imported when something is loaded on it, and not before."""

from localdflash.backend.names import Runner
from localdflash.backend.options import Options
from localdflash.backend.running import Running
from localdflash.pairs.pair import LocalPair


def load_on(backend: Runner, files: LocalPair, options: Options) -> Running:
    """The pair on this backend; what its `load` raises says why it cannot run there."""
    match backend:
        case "cpu":
            from localdflash.cpu.load import load
        case "cuda":
            from localdflash.cuda.load import load
        case "llama.cpp":
            from localdflash.llamacpp.load import load
        case "torch":
            from localdflash.reference.load import load
    return load(files, options)
