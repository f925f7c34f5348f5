"""Fingerprint of the target that a drafter was trained for; with another target fewer draft tokens are accepted.

The digest covers the architecture and the name, type, shape and first bytes of every tensor, not other metadata.
"""

import hashlib
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from localdflash.base.files.regular import open_model
from localdflash.models.weights.gguf import GGUFHeader

FIRST_BYTES = 256  # hashed bytes of each tensor


@dataclass(frozen=True)
class TrainedFor:
    """Target that a drafter was trained for, and the mean accepted length with this target."""

    name: str  # file name
    kind: str  # architecture, shape and quantization
    digest: str
    tau: float = 0.0  # tokens per verify step on held-out answers; 0: not measured


def fingerprint_of(target: GGUFHeader, tau: float = 0.0) -> TrainedFor:
    """Return the fingerprint of a GGUF target."""
    digest = hashlib.blake2b(target.architecture.encode(), digest_size=16)
    sizes = Counter[str]()
    with ExitStack() as stack:
        files = [stack.enter_context(open_model(file))[0] for file in target.files]
        for name, info in sorted(target.tensors.items()):
            stream = files[info.part]
            stream.seek(info.offset)
            digest.update(f"\n{name} {info.ggml_type.name} {info.shape}\n".encode())
            digest.update(stream.read(min(FIRST_BYTES, info.nbytes)))
            sizes[info.ggml_type.name] += info.nbytes
    name = target.architecture
    layers, hidden = (target.metadata.get(f"{name}.{key}", "?") for key in ("block_count", "embedding_length"))
    kind = f"{name}, {layers} blocks of {hidden}, {sizes.most_common(1)[0][0]}"
    return TrainedFor(target.path.name, kind, digest.hexdigest(), tau)


def mismatch(drafter: Path, expected: TrainedFor | None, target: GGUFHeader) -> str:
    """Return a notice if a drafter was trained for another target, or ""."""
    if expected is None or (actual := fingerprint_of(target)).digest == expected.digest:
        return ""
    difference = f"is {actual.kind}" if actual.kind != expected.kind else "has other weights of the same shape"
    tau = f", with {expected.tau:.2f} tokens per verify step" if expected.tau else ""
    return (
        f"{drafter.name} was trained for {expected.name} ({expected.kind}){tau};"
        f" {actual.name} {difference}, so acceptance may be lower; `localdflash train drafter --pair` trains one for it"
    )
