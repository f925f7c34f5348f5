"""Chat benchmark: speed, identity, distribution test, step costs, contexts, other backends and the daemon.

Modes are interleaved on every prompt, from a cold cache.
"""

from dataclasses import replace
from typing import Any

from localdflash.base.errors import ModelError, NoDevice, OutOfMemory
from localdflash.base.machine import hardware
from localdflash.lab.bench.chat import daemon_ttft
from localdflash.lab.bench.chat.chat_modes import PLAIN, open_chat_modes
from localdflash.lab.bench.chat.chat_prompts import CATEGORIES, load
from localdflash.lab.bench.chat.measuring import PLAIN_PARAMS, ChatBench, size_of
from localdflash.lab.bench.chat.report import identical, report
from localdflash.lab.bench.pace import Watcher
from localdflash.loading.load_pair import LoadedPair
from localdflash.loading.proof import check_first
from localdflash.models.backend_names import RUNNERS
from localdflash.models.load_options import Options
from localdflash.server.engine_spec import EngineSpec

OTHER_TOKENS = 24  # maximum length of an answer from another backend; enough to compare speeds
REFERENCE_BYTES = 1 << 30  # larger targets do not run on the reference backend, which holds them in float32


def run(
    options: Options, spec: EngineSpec, limit: int | None, repeats: int, watcher: Watcher, result: dict[str, Any]
) -> None:
    """Run all measurements and add them to `result`, which is `interrupted` until the end. `spec` starts the daemon.

    `result` stays empty if the run ends before the first prompt is done.
    """
    prompts, size = load(limit), size_of(limit)
    about: dict[str, Any] = {"pair": options.pair, "suite": "chat", "threads": options.threads, "interrupted": True}
    check_first(options)
    with LoadedPair(options) as loaded, open_chat_modes(loaded, options) as modes:
        about |= {"backend": loaded.backend} | ({} if modes.hosts else {"device": hardware.describe_gpu()})
        bench = ChatBench(loaded, modes, prompts, repeats, size, watcher)
        try:
            bench.run_all()
            if size.has_others:
                watcher.done(0.0, "other backends")
                bench.measurements["other_plain"] = _measure_other_backends(options, loaded, bench)
        finally:
            if bench.results:
                result |= about | bench.measurements | _reports(bench)
    watcher.done(0.0, "the daemon")
    daemon = replace(spec, options={**spec.options, "backend": result["backend"]})
    result["daemon"] = daemon_ttft.measure(daemon, size.cold, size.warm, lambda: watcher.done(0.0, "the daemon"))
    result["interrupted"] = False


def _reports(bench: ChatBench) -> dict[str, Any]:
    """Return the statistics by category and overall."""
    by_category = {name: [result for result in bench.results if result.category == name] for name in CATEGORIES}
    overall = report(bench.results)
    faster = [row["over_plain"] for row in bench.measurements.get("other_plain", {}).values()]
    if llama := overall.get("over_llama_cpp"):
        faster.append(1 / llama[PLAIN])
    overall["over_best_plain"] = round(overall["over_plain"]["drafting"] / max([1.0, *faster]), 3)
    return {
        "categories": {name: report(results) for name, results in by_category.items() if results},
        "overall": overall,
        "identical": identical(bench.results),
    }


def _measure_other_backends(options: Options, loaded: LoadedPair, bench: ChatBench) -> dict[str, dict[str, float]]:
    """Return tok/s of each other backend on the first prompt without drafting, and the ratio to the loaded backend."""
    running, results = loaded.backend, dict[str, dict[str, float]]()
    for backend in RUNNERS:
        if backend in (running, "cuda"):
            continue
        if backend == "torch" and loaded.files.target.stat().st_size > REFERENCE_BYTES:
            continue
        try:
            with LoadedPair(replace(options, backend=backend, draft=False)) as other:
                rates = [
                    bench.answer(pair, bench.prompts[0], PLAIN_PARAMS, OTHER_TOKENS).stats.tokens_per_second
                    for pair in (bench.modes.pairs[PLAIN], other.pair)
                ]
        except (ModelError, NoDevice, OutOfMemory):
            continue
        results[backend] = {"tok_s": round(rates[1], 1), "over_plain": round(rates[1] / rates[0], 3)}
    return results
