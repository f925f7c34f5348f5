"""These tests run the kernels in Triton's interpreter, which must be asked for before Triton is imported."""

import os

os.environ["TRITON_INTERPRET"] = "1"
