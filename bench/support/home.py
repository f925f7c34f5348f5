"""A home for a picture or a measurement: nothing of this user's settings and chats, but the models that are here."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from localdflash.pairs.pair import models_folder
from localdflash.pairs.registry import load_registry, missing_files
from localdflash.server.client import find
from localdflash.server.spawn import stop


@contextmanager
def home_with(*pairs: str) -> Iterator[Path]:
    """A new LOCALDFLASH_HOME with the models of this user, these pairs among them; its engine ends with it."""
    models = models_folder()
    if absent := [pair for pair in pairs if missing_files(load_registry().resolve(pair))]:
        sys.exit(f"{absent[0]} is not here: localdflash models pull {absent[0]}")
    with tempfile.TemporaryDirectory(prefix="ldf", dir="/tmp") as top:  # short: a socket lies in it
        home = Path(top)
        (home / "cache").mkdir()
        (home / "cache" / "models").symlink_to(models)
        before = os.environ.get("LOCALDFLASH_HOME")
        os.environ["LOCALDFLASH_HOME"] = top
        try:
            yield home
            if engine := find():
                stop(engine)
        finally:
            if before is None:
                del os.environ["LOCALDFLASH_HOME"]
            else:
                os.environ["LOCALDFLASH_HOME"] = before
