"""Entries of models.toml, one with every key."""

from pathlib import Path

HASH = "0123456789abcdef" * 4
HEAD = 'schema = 1\n\n[[pair]]\nid = "mine"\ndescription = "A pair of mine"\nbackends = ["llama.cpp"]\n'
FACTS = """\
architecture = "qwen3"
licence = "MIT"
memory_gb = 2.5
context = 4096
layers = 36
fim = "qwen"
kv = "int8"
notes = ["one", "two"]
"""
TARGET = f"""
[pair.target]
repository = "owner/name-GGUF"
file = "target-Q4_K_M.gguf"
quantization = "Q4_K_M"
sha256 = "{HASH}"
"""
PACKAGE = f"""
[pair.target]
package = "made-up"
version = "1.0"
wheel_sha256 = "{HASH}"
wheel_size = 2
file = "made_up/x.gguf"
sha256 = "{HASH}"
size = 1
"""
DRAFTER = """
[pair.drafter]
kind = "dflash"
repository = "owner/name-DFlash"
file = "sub/model.safetensors"
block_size = 16
taps = [1, 9, 17]
"""
VALID = HEAD + FACTS + TARGET + DRAFTER
# A kind of entry that the shipped registry lacks: a pair without a backend.
WAITING = HEAD.replace('"mine"', '"waiting"').replace('["llama.cpp"]', "[]") + TARGET


def register(home: Path, entries: str) -> None:
    """Write these entries as the user's registry."""
    (home / "config").mkdir(parents=True, exist_ok=True)
    (home / "config" / "models.toml").write_text(entries)


ADAPTED = f"""
[pair.target]
base = "embedded"
adapter = "a.safetensors"
file = "taught.gguf"
sha256 = "{HASH}"
size = 2
"""
