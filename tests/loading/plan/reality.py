"""Load a pair, generate, and print the planned, measured and resident bytes of this process as JSON."""

import json
import sys
from typing import cast

from localdflash.engine.generate import Request, generate
from localdflash.loading.load_pair import LoadedPair
from localdflash.models.backend_names import Backend
from localdflash.models.load_options import Options
from localdflash.models.memory.free import resident_bytes

pair, context, backend = sys.argv[1:]
with LoadedPair(Options(pair, cast(Backend, backend), threads=1, context=int(context))) as loaded:
    for _step in generate(loaded.pair, Request([5] * 40, 24)):
        pass
    measured = loaded.memory()
    json.dump({"predicted": loaded.predicted_memory, "measured": measured, "resident": resident_bytes()}, sys.stdout)
