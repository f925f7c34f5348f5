"""Compiles kernels before they are launched, into a cache that later starts reuse: Triton's, in our folder.

Triton keys its cache by the kernel's source, what it is compiled for, its own version and the compiler's options, so
that nothing here has to know when an entry is stale.
"""

import os
from collections.abc import Iterable
from contextlib import suppress

from localdflash.base.errors import LocaldflashError
from localdflash.kernels.cuda.launch import Launch
from localdflash.models.load_options import Compiling

FOLDER = "TRITON_CACHE_DIR"  # the variable by which Triton is told


def compile_all(launches: Iterable[Launch], compiling: Compiling | None = None) -> None:
    """Compile each variant among the launches once; `compiling` is told before the first and after each."""
    keep_compiled()
    distinct = {launch.variant: launch for launch in launches}
    for done, launch in enumerate(distinct.values()):
        if compiling:
            compiling(done, len(distinct))
        launch.compile()
    if compiling:
        compiling(len(distinct), len(distinct))


def keep_compiled() -> None:
    """Let this process's Triton keep what it compiles in our folder, unless the user has named another."""
    if FOLDER in os.environ:
        return
    with suppress(LocaldflashError, ImportError):  # without a folder of ours Triton has one of its own
        from localdflash.base.files.paths import cache_folder, create_private  # needs more than the GPU's tests do

        os.environ[FOLDER] = str(create_private(cache_folder() / "triton"))
