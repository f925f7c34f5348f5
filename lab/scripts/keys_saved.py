"""Measure the keystrokes that completions save, in virtual time with recorded answers, so that a run takes seconds.

`PYTHONPATH=. python -P lab/scripts/keys_saved.py FOLDER --records FILE --name NAME [--turn N] [--seed N] [--keys N]`

FOLDER is the folder of `train adapter`; parts of files from its held-out packages are typed, see `held_out_files.py`.
Editor, typist and language server are those of `bench typing`. `halves` has the shares saved in the even and odd files.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from localdflash.lab import result_file
from localdflash.lab.bench.passages import TypingJob, from_file
from localdflash.lab.bench.typing import keystrokes, total
from localdflash.lab.bench.typing_replay import TypingOptions, TypingReplay, type_all
from localdflash.lab.scripts.held_out_files import choose_files
from localdflash.lab.scripts.support import virtual_time
from localdflash.lab.scripts.support.near_server import NearServer
from localdflash.lab.scripts.support.recorded_engine import RecordedEngine
from localdflash.loading.load_pair import LoadedPair
from localdflash.lsp.engine_completer import CompletionClient
from localdflash.models.load_options import Options


def main() -> None:
    """Run the script as its docstring says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--records", type=Path, required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--pair", default="smollm2-135m-code")
    parser.add_argument("--turn", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keys", type=int, default=80)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    typing_options = TypingOptions("neovim", given.keys, given.seed)
    jobs = [from_file(name, text, given.keys, given.seed) for name, text in choose_files(given.folder, given.turn)]
    with LoadedPair(Options(given.pair, backend="cpu", draft=False)) as loaded:
        result = type_jobs(jobs, typing_options, RecordedEngine(loaded, given.records))
    print(json.dumps(result, indent=1))
    result_file.write(given.json, result, given.name)


def type_jobs(jobs: Sequence[TypingJob], typing_options: TypingOptions, engine: CompletionClient) -> dict[str, Any]:
    """Type all jobs; return the key counts and the shares of keystrokes saved."""
    replay = TypingReplay()

    async def start(_: Path, on_notification: Any) -> NearServer:
        return NearServer(engine, on_notification)

    with tempfile.TemporaryDirectory() as folder:
        virtual_time.run(type_all(start, jobs, Path(folder), typing_options, replay, lambda *_: None))
    files, trace = list(replay.files.values()), replay.trace
    halves = [total(files[at::2]) for at in (0, 1)]
    return {
        **keystrokes(total(files)),
        "halves": [keystrokes(half)["keystrokes_saved"] for half in halves],
        "shown": trace.shown,
        "rejected": trace.rejected,
        "requests": trace.requests,
        "with_text": len(trace.request_to_text),
        "stale": trace.stale,
        "flicker": trace.flicker,
        "errors": trace.errors[:1],
    }


if __name__ == "__main__":
    main()
