"""localdflash: a local coding assistant that drafts with DFlash and verifies with a quantized model."""

import os

__version__ = "0.1.0"

# Read where ggml is loaded: a failed assertion would fork a debugger, which waits for good where there is none.
os.environ.setdefault("GGML_NO_BACKTRACE", "1")
