"""Temporary home for pictures and measurements: without the user's settings and chats, with the user's models."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from localdflash.models.registry.pair_entry import models_folder
from localdflash.models.registry.registry import load_registry, missing_files
from localdflash.server.client import find_daemon
from localdflash.server.spawn import stop


@contextmanager
def home_with(*pairs: str) -> Iterator[Path]:
    """Set a new LOCALDFLASH_HOME with these pairs; stop its daemon at the end."""
    with tempfile.TemporaryDirectory(prefix="ldf", dir="/tmp") as top:  # a Unix socket's path must be short
        lend_models(Path(top), *pairs)
        with patch.dict(os.environ, LOCALDFLASH_HOME=top):
            try:
                yield Path(top)
            finally:
                if engine := find_daemon():
                    stop(engine)


def lend_models(home: Path, *pairs: str) -> None:
    """Link the user's models into a home. SystemExit if a pair is missing."""
    if absent := [pair for pair in pairs if missing_files(load_registry().resolve(pair))]:
        sys.exit(f"{absent[0]} is not downloaded; run `localdflash models pull {absent[0]}`")
    (home / "cache").mkdir(parents=True)
    (home / "cache" / "models").symlink_to(models_folder())
