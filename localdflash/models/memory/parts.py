"""Parts of a pair's memory: bytes by name, with the same names in predictions and measurements."""

Parts = dict[str, int]

TARGET = "target weights"
DRAFTER = "drafter weights"
TARGET_KV = "target K/V"
DRAFTER_KV = "drafter K/V"
SCRATCH = "graphs and scratch"  # compute buffers, logits, hidden states for the drafter
IN_MEMORY = " in memory"  # suffix of parts in host memory while the pair is on a GPU
PROGRAM = "program"  # the interpreter, its libraries and the vocabulary
PREFIXES = "prefix cache"  # the daemon's; not planned, because the cache only uses free memory


def total(parts: Parts) -> int:
    """Return the bytes of all parts."""
    return sum(parts.values())


def split_host_parts(parts: Parts) -> tuple[Parts, Parts]:
    """Split parts into GPU parts and host memory parts."""
    host_parts = {name: size for name, size in parts.items() if name.endswith(IN_MEMORY) or name == PROGRAM}
    return {name: size for name, size in parts.items() if name not in host_parts}, host_parts


def format_bytes(count: float) -> str:
    """Return a size for a table or a message: "5.03 GB", "12.4 MB" (10^9 and 10^6 bytes)."""
    return f"{count / 1e9:.2f} GB" if abs(count) >= 1e9 else f"{count / 1e6:.1f} MB"
