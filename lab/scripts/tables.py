"""Rewrite the tables in README.md and docs/: measured numbers from bench/results/*.json, pairs from models.toml.

`PYTHONPATH=. python -P lab/scripts/tables.py` replaces what lies between `<!-- table NAME -->` and `<!-- end -->` on
every page; `--check` only reports pages that are out of date, with exit code 1.
"""

import argparse
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from localdflash.lab.scripts.registry_table import pairs

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    "README.md",
    "docs/benchmarks.md",
    "docs/install.md",
    "docs/cuda-engine.md",
    "docs/laptop-dflash.md",
    "docs/models.md",
    "docs/agents.md",
)
PLACE = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
CHAT_PROMPTS = {
    "function": "write a function",
    "explain": "explain code",
    "edit": "edit code",
    "types": "add type hints",
    "tests": "write tests",
    "talk": "talk",
    "json": "JSON by a schema",
}
Row = list[str]


def load(name: str) -> Any:
    """Return the measurements of one result file."""
    return json.loads((ROOT / "bench" / "results" / f"{name}.json").read_text("utf-8"))


def chat(file: str = "smollm2") -> Iterator[Row]:
    """Yield the chat pair's results for the README."""
    yield ["prompts", "without drafting", "with drafting", "speedup", "vs llama.cpp", "identical text"]
    for name, entry in _of_chat(file):
        ratios = f"{entry['over_llama_cpp_median']['drafting']:.1f}×", f"{entry['over_plain']['drafting']:.2f}×"
        rates = (f"{entry['tok_s'][mode]:.0f} tok/s" for mode in ("plain", "drafting"))
        yield [name, *rates, *reversed(ratios), entry["identical"]["greedy"]]


def chat_modes() -> Iterator[Row]:
    """Yield the chat pair's results by drafting mode."""
    yield [
        "prompts",
        "both drafters",
        "DFlash alone",
        "lookup alone",
        "sampled at 0.7",
        "τ",
        "τ of whole DFlash blocks",
    ]
    for name, entry in _of_chat("smollm2"):
        speedups = [f"{entry['over_plain'][mode]:.2f}×" for mode in ("drafting", "dflash", "lookup", "sampled")]
        yield [name, *speedups, f"{entry['tau']['drafting']:.2f}", f"{entry['tau']['forced']:.2f}"]


def chat_avx2() -> Iterator[Row]:
    """Yield the chat pair's results without VNNI."""
    return chat("smollm2-avx2")


def chat_context_avx2() -> Iterator[Row]:
    """Yield the chat pair's results by context length without VNNI."""
    return chat_context("smollm2-avx2")


def chat_context(file: str = "smollm2") -> Iterator[Row]:
    """Yield the chat pair's results by context length."""
    yield ["context", "without drafting", "with drafting", "speedup", "τ"]
    for entry in load(file)["context"]:
        rate = entry["tok_s"]
        speeds = [f"{rate['plain']:.0f} tok/s", f"{rate['drafting']:.0f} tok/s"]
        yield [f"{entry['context']}", *speeds, f"{entry['over_plain']:.2f}×", f"{entry['tau']['drafting']:.2f}"]


def bandwidth_share() -> Iterator[Row]:
    """Yield the share of the measured read bandwidth that a single token of the chat pair reaches, without VNNI."""
    result = load("cpu-context-avx2")
    measured = result["models"]["smollm2-135m"]
    yield ["context", "KV cache", "weights and KV read", "time", "share of read bandwidth"]
    for kv in measured["bytes_a_token"]:
        for context, ms in measured[f"{kv}, 1 rows"]["ms"].items():
            nbytes = measured["weight_bytes"] + int(context) * measured["bytes_a_token"][kv]
            share = nbytes / (ms / 1e3) / (result["bandwidth_gb_s"] * 1e9)
            yield [context, kv, f"{nbytes / 1e6:.0f} MB", f"{ms:.1f} ms", f"{100 * share:.0f} %"]


def chat_facts() -> Iterator[Row]:
    """Yield other facts of the chat pair."""
    results = load("smollm2")
    chances, verify, daemon = results["distribution"], results["verify"]["over_ar"], results["daemon"]
    slots = ", ".join(f"{100 * share:.0f} %" for share in results["overall"]["accept_by_slot"])
    yield ["fact", "value"]
    yield ["identical sampled text at temperature 0.7, same seed", results["identical"]["sampled"]]
    yield ["χ² test of sampled tokens", f"p = {chances['p_value']:.2f}, {chances['draws']} draws"]
    yield ["time of 2, 4, 8, 16 tokens (one token: 1)", ", ".join(f"{verify[n]:.2f}" for n in ("2", "4", "8", "16"))]
    yield ["acceptance at positions 1 to 5 of a DFlash block", slots]
    yield ["DFlash's share of steps with a draft", f"{100 * results['overall']['dflash_share_of_drafted']:.0f} %"]
    yield ["TTFT of a pasted question of 100 tokens in a warm chat, p50", f"{daemon['warm_ms']['p50']:.0f} ms"]
    yield ["TTFT of a typed one, which is read meanwhile, p50", f"{daemon['typed_ms']['p50']:.0f} ms"]
    yield ["TTFT with a cold start, p50", f"{daemon['cold_start_ms']['p50'] / 1e3:.1f} s"]
    yield ["llama.cpp on the same file, running alone", f"{results['other_plain']['llama.cpp']['tok_s']:.0f} tok/s"]


def _of_chat(file: str) -> Iterator[tuple[str, Any]]:
    results = load(file)
    yield from ((label, results["categories"][name]) for name, label in CHAT_PROMPTS.items())
    yield "all", results["overall"]


def shapes() -> Iterator[Row]:
    """Yield the costs of models with random weights in real shapes."""
    yield ["model", "token, ms", "llama.cpp, ms", "V(8)", "V(16)", "vs llama.cpp at 16", "draft + V(8)"]
    for name, entry in load("cpu-shapes")["models"].items():
        ours, drafts = entry["cpu"], entry["drafts"]
        step = next(row["draft_and_v8"] for kind, row in drafts.items() if kind.startswith("Q8_0, "))
        costs = [
            f"{ours['v']['8']:.2f}",
            f"{ours['v']['16']:.2f}",
            f"{entry['speed_of_16_over_llama_cpp']:.1f}×",
            f"{step:.2f}",
        ]
        yield [f"Qwen3-{name}", f"{ours['ms']['1']:.1f}", f"{entry['llama.cpp']['ms']['1']:.1f}", *costs]


def prompts() -> Iterator[Row]:
    """Yield the prefill speeds."""
    lengths = ("128", "1024", "4096")
    yield ["model", *(f"{int(length):,} tokens" for length in lengths)]
    for name, entry in load("prompts")["models"].items():
        found = [entry.get(length) for length in lengths]
        yield [name, *(f"{row['cpu']:.0f} tok/s ({row['ratio']:.1f}×)" if row else "not run" for row in found)]


def kv() -> Iterator[Row]:
    """Yield the cost and quality of the KV cache formats."""
    cost, speed = load("cpu-kv")["pairs"]["smollm2-135m"], load("cpu-context")["models"]
    yield ["model", "KV cache", "bytes a token", "token at 64, 2,048, 8,100 tokens of context, ms", "perplexity"]
    for name, entry in speed.items():
        for kind in entry["bytes_a_token"]:
            ms = ", ".join(f"{entry[f'{kind}, 1 rows']['ms'][length]:.1f}" for length in ("64", "2048", "8100"))
            perplexity = f"{cost[kind]['perplexity']:.4f}" if name == "smollm2-135m" else "not measured"
            yield [name, kind, f"{entry['bytes_a_token'][kind]:,}", ms, perplexity]


def activations() -> Iterator[Row]:
    """Yield the quality with 8-bit activations."""
    yield ["engine", "perplexity", "perplexity, float32", "same likeliest token", "KL, nats"]
    for name, entry in load("cpu-quality")["embedded"].items():
        if name != "files":
            numbers = [
                f"{entry['perplexity']:.4f}",
                f"{entry['perplexity_float32']:.4f}",
                f"{100 * entry['top1_agreement']:.1f} %",
            ]
            yield [name, *numbers, f"{entry['kl_nats']:.5f}"]


def peers() -> Iterator[Row]:
    """Yield the comparison with llama-server."""
    yield ["program and mode", "tok/s", "τ", "speedup of localdflash with drafting", "same text as without drafting"]
    for name, side in load("peer-smollm2")["answers"]["sides"].items():
        label = {"localdflash": "localdflash, drafting", "localdflash plain": "localdflash, no drafting"}.get(
            name, name
        )
        numbers = [f"{side['tok_s']:.0f}", f"{side['tau']:.2f}", f"{side['ours_over_this']:.2f}×"]
        yield [label.replace("plain", "no drafting"), *numbers, side["same_as_own_plain"]]


def peer_batches() -> Iterator[Row]:
    """Yield the cost of batches beside llama.cpp and ik_llama.cpp, and the share of the read bandwidth at one token."""
    yield ["CPU", "model", "program", "1 token", "4", "8", "16 tokens, ms", "share of read bandwidth at 1"]
    for cpu, name in (("VNNI", "cpu-peers"), ("AVX2", "cpu-peers-avx2")):
        result = load(name)
        for model, measured in result["models"].items():
            for program, times in measured["ms"].items():
                share = measured["weight_bytes"] / (times["1"] / 1e3) / (result["bandwidth_gb_s"] * 1e9)
                yield [cpu, model, program, *(f"{ms:.1f}" for ms in times.values()), f"{100 * share:.0f} %"]


def first_token() -> Iterator[Row]:
    """Yield the facts about start-up and daemon."""
    start, soak, server = load("startup"), load("soak"), load("server")
    yield ["fact", "value"]
    yield ["`localdflash --help`", f"{start['help_ms']:.0f} ms"]
    yield ["completion of 32 tokens, warm, p50", f"{start['warm_completion_32_tokens_ms']['p50']:.0f} ms"]
    yield ["peak memory of `complete --no-daemon`", f"{start['complete_peak_memory_mb']:.0f} MB"]
    yield ["TTFT, daemon not running / running", " / ".join(f"{ms:.0f} ms" for ms in start["first_token_ms"].values())]
    yield ["p95 of a completion during a chat answer, divided by p95 alone", f"{server['p95_beside_over_alone']:.2f}"]
    yield ["round trip to the daemon, p50", f"{server['round_trip_ms']['p50']:.1f} ms"]
    freed = server["cancel_to_free_ms"]["<= 4"]
    yield ["cancelled requests that free the engine within 4 ms", f"{freed:.0f} %"]
    wrong = soak["outcomes"].get("wrong", 0)
    yield [f"wrong answers to {soak['requests']:,} requests of {soak['clients']} clients", f"{wrong}"]
    yield ["memory growth meanwhile", f"{100 * soak['growth']:.1f} %"]


def infill() -> Iterator[Row]:
    """Yield the results of HumanEval-Infilling."""
    yield ["pair", "tasks", "pass@1", "exact match", "edit similarity", "p50"]
    for name, entry in load("infill").items():
        shares = [f"{100 * entry[key]:.1f} %" for key in ("pass_at_1", "exact_match")]
        yield [
            name,
            f"{entry['tasks']}",
            *shares,
            f"{entry['edit_similarity']:.2f}",
            f"{entry['latency_ms']['p50']:.0f} ms",
        ]


def places() -> Iterator[Row]:
    """Yield the results at random cursor positions."""
    yield ["pair", "all correct", "begins correctly", "wrong", "none shown", "breaks the syntax"]
    for name, entry in load("places").items():
        label = {
            "before": "embedded, before syntax checks",
            "after": "embedded",
            "enter-before": "smollm2-135m-code, after Enter, before complete lines joined the prefix",
            "enter-after": "smollm2-135m-code, after Enter",
            **{
                f"context-{one}": f"smollm2-135m-code, 72 positions from line 100 on, context: {one}"
                for one in ("none", "own", "other", "own,other")
            },
        }.get(name, name)
        yield [
            label,
            *(f"{entry[key]}" for key in ("whole", "part", "wrong", "silent")),
            f"{entry['open'] + entry['broken']}",
        ]


_REPLAYS = {  # in real time: result, and pair
    "typing": "embedded",
    "typing-code": "smollm2-135m-code",
    "typing-code-vnni": "smollm2-135m-code with AVX512-VNNI",
}


def typing() -> Iterator[Row]:
    """Yield the results of typing replays."""
    yield ["replay", "keys", "keys saved", "suggestions", "rejected", "stale"]
    for name, entry in load("keys-saved").items():
        yield _typed(name, entry)
    for name, pair in _REPLAYS.items():
        yield _typed(f"{pair}, in real time", load(name)["overall"])


def _typed(name: str, entry: Any) -> Row:
    saved = f"{100 * entry['keystrokes_saved']:.1f} %"
    return [name, f"{entry['keys']}", saved, f"{entry['shown']}", f"{entry['rejected']}", f"{entry['stale']}"]


def latency() -> Iterator[Row]:
    """Yield the latencies of editors and chat."""
    lsp, nvim, vscode, screen = load("lsp"), load("nvim"), load("vscode"), load("chat")
    yield ["from … to …", "p50", "p95"]
    yield _spread("key to answer, language server, file of 2,000 lines, instant engine", lsp["2000"]["fresh"])
    yield _spread("key to answer, language server, file of 20,000 lines, instant engine", lsp["20000"]["fresh"])
    yield _spread("key to ghost text, Neovim, instant engine", nvim["key_to_ghost_ms"]["served"])
    yield _spread("key to painted ghost text, VS Code (85 ms without localdflash)", vscode["key_to_ghost_ms"]["all"])
    for name, pair in _REPLAYS.items():
        found = load(name)["ms"]["request_to_first_line_not_cached"]
        yield _spread(f"request to first verified line, not cached, {pair}", found)
    yield _spread("`localdflash chat` to the first key on the screen", screen["start"]["first_key"])
    yield _spread("key to its echo in the chat", screen["echo"]["at_0"])
    yield _spread("key to its echo while an answer arrives at 400 tok/s", screen["echo"]["at_400"])
    yield _spread("Esc to “stopped”", screen["stop"])
    yield _spread("start to the end of a chat of 1,000 messages", screen["opening"]["shown"])


def _spread(name: str, ms: Any) -> Row:
    return [name, f"{ms['p50']:.1f} ms", f"{ms['p95']:.1f} ms"]


def gpu_steps() -> Iterator[Row]:
    """Yield the step times of the CUDA engine and of llama.cpp by context length."""
    phases = load("h200")["phases"]
    ours, theirs = ("step without drafting", "draft and verify"), ("llama.cpp, 1 token", "llama.cpp, 16 tokens")
    yield ["tokens of context", *ours, *theirs]
    for context in ("1024", "16384"):
        step = phases["steps"]["Q4_K"][f"step_ms_{context}"]
        llama = phases["llama"][f"{context} with flash attention"]
        times = step["plain"], step["block"], llama["plain_ms"], llama["rows_16_ms"]
        yield [f"{int(context):,}", *(f"{ms:.2f} ms" for ms in times)]


def gpu_rates() -> Iterator[Row]:
    """Yield the speed of the CUDA engine after a prompt of 1,025 tokens, by tokens per verify step."""
    yield ["tokens per verify step (τ)", "decoding", "speedup"]
    for name, entry in load("h200")["phases"]["steps"]["Q4_K"]["acceptance"].items():
        rates = f"{entry['tok_s']:,.0f} tok/s", f"{entry.get('speedup', 1):.2f}×"
        yield ["1, without drafting" if name == "plain" else f"{entry['tau']:.1f}", *rates]


def gpu_prompts() -> Iterator[Row]:
    """Yield the time of the CUDA engine for prompts that are not cached."""
    yield ["tokens of the prompt", "time", "speed"]
    for length, entry in load("h200")["phases"]["steps"]["Q4_K"]["prompts"].items():
        yield [f"{int(length):,}", f"{entry['ms']:.0f} ms", f"{entry['tok_s']:,.0f} tok/s"]


def first_minute() -> Iterator[Row]:
    """Yield the times from a fresh clone to a suggestion in Neovim."""
    results = load("first-minute")
    install, questions = results["install"], results["chat"]["questions"]
    yield ["step", "seconds"]
    yield ["`git clone`, `make setup`", f"{install['seconds']:.0f}"]
    yield ["`localdflash chat` to its prompt", f"{results['chat']['prompt']['seconds']:.1f}"]
    for number, question in zip(("first", "second", "third"), questions, strict=True):
        yield [f"{number} question to its first token", f"{question['ttft_ms'] / 1e3:.2f}"]
    yield ["Neovim to an open file", f"{results['completion']['opened']['seconds']:.1f}"]
    yield ["a typed line to its first suggestion, model not loaded", f"{results['completion']['shown']['seconds']:.1f}"]


def agents() -> Iterator[Row]:
    """Yield what coding agents send, what of it is cached, and what they do if a prompt does not fit."""
    yield ["agent", "tokens of the first turn", "cached in the second turn", "its TTFT", "if a prompt does not fit"]
    for name, entry in load("agents")["clients"].items():
        share, ms = f"{100 * entry['second_cached_share']:.1f} %", f"{entry['second_ttft_ms']['p50'] / 1e3:.2f} s"
        yield [f"{name} {entry['version']}", f"{entry['first_turn_tokens']:,}", share, ms, entry["overflow"]]


TABLES: dict[str, Callable[[], Iterator[Row]]] = {
    table.__name__: table
    for table in (
        *(chat, chat_modes, chat_context, chat_facts, chat_avx2, chat_context_avx2, bandwidth_share, shapes),
        *(
            prompts,
            kv,
            activations,
            peers,
            peer_batches,
            first_token,
            first_minute,
            infill,
            places,
            typing,
            latency,
            gpu_steps,
            gpu_rates,
            gpu_prompts,
            pairs,
            agents,
        ),
    )
}


def markdown(rows: Iterator[Row]) -> str:
    """Return a table in Markdown; its first row is the head."""
    head, *rest = rows
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *rest))


def render_tables(text: str) -> str:
    """Return a page with its tables rendered again."""
    return PLACE.sub(lambda found: found[1] + markdown(TABLES[found[2]]()) + found[3], text)


def main() -> int:
    """Rewrite or check the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = 0
    for page in PAGES:
        old = (ROOT / page).read_text("utf-8")
        if (new := render_tables(old)) != old:
            stale += 1
            print(page)
            if not check:
                (ROOT / page).write_text(new, "utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    raise SystemExit(main())
