"""Whose bytes are known: files that ship with this version, and files that were verified by a hash that does."""

from functools import cache
from pathlib import Path

from localdflash.models.registry import records
from localdflash.models.registry.registry import MODELS_FOLDER, shipped_file
from localdflash.models.registry.registry_file import read_pairs


def is_known(file: Path) -> bool:
    """Whether a file's bytes are those that this version was tried with."""
    if file.is_relative_to(MODELS_FOLDER):
        return True
    record = records.current(file)
    return record is not None and record.sha256 in _shipped_hashes()


@cache
def _shipped_hashes() -> frozenset[str]:
    pairs = read_pairs(shipped_file(), MODELS_FOLDER).values()
    return frozenset(source.sha256 for pair in pairs for source in pair.sources if source.sha256)
