"""`localdflash export`: print how to run a pair in vLLM, SGLang or llama-server."""

import sys
from pathlib import Path

import click

from localdflash.base import extras
from localdflash.base.errors import UsageError
from localdflash.cli import shell_completion
from localdflash.cli.output import print_json
from localdflash.lab.export.launch_commands import LAUNCHERS, ExportOptions
from localdflash.models.registry.registry import load_registry, local_files
from localdflash.text.sanitize import printable


@click.command()
@click.argument("engine", type=click.Choice(list(LAUNCHERS)))
@click.argument("pair_id", metavar="ID", shell_complete=shell_completion.pairs)
@click.option("--drafter", metavar="SPEC", help="Use another drafter: a path, or hf:owner/name/file.")
@click.option("--target", metavar="REPO", help="For vLLM and SGLang: repository (owner/name) or folder of the target.")
@click.option(
    "--folder", type=click.Path(file_okay=False, path_type=Path), help="For vLLM: write the pair's files here."
)
@click.option("--draft-tokens", type=click.IntRange(1, 64), metavar="N", help="Draft N tokens instead of a full block.")
@click.option("--context", type=click.IntRange(1), metavar="N", help="Context length in tokens.")
@click.option("--json", "as_json", is_flag=True, help="Print the arguments of the command as JSON.")
def command(
    engine: str,
    pair_id: str,
    drafter: str | None,
    target: str | None,
    folder: Path | None,
    draft_tokens: int | None,
    context: int | None,
    as_json: bool,
) -> None:
    """Print the command that runs the pair ID in another ENGINE. Prerequisites are printed to stderr.

    With --folder, vLLM gets a pair that no hub has: the embedded pair, or one that you trained.
    """
    pair = load_registry().resolve(pair_id, drafter)
    if folder:
        if engine != "vllm" or target:
            raise UsageError("--folder: only for vllm, without --target")
        extras.require("torch", "export --folder")
        from localdflash.lab.export.vllm_folder import write_pair  # imports torch

        launch = write_pair(local_files(pair), folder, draft_tokens, context)
    else:
        launch = LAUNCHERS[engine](pair, ExportOptions(target, draft_tokens, context))
    if as_json:
        print_json({"argv": launch.argv, "needs": launch.needs})
        return
    for need in launch.needs:
        print(f"# needs {printable(need)}", file=sys.stderr)
    print(launch.shell())
