"""`localdflash export`: print how to run a pair in vLLM, SGLang or llama-server."""

import sys

import click

from localdflash.cli import shell_completion
from localdflash.cli.output import print_json
from localdflash.models.registry.launch_commands import LAUNCHERS, ExportOptions
from localdflash.models.registry.registry import load_registry
from localdflash.text.sanitize import printable


@click.command()
@click.argument("engine", type=click.Choice(list(LAUNCHERS)))
@click.argument("pair_id", metavar="ID", shell_complete=shell_completion.pairs)
@click.option("--drafter", metavar="SPEC", help="Use another drafter: a path, or hf:owner/name/file.")
@click.option("--target", metavar="REPO", help="For vLLM and SGLang: repository (owner/name) or folder of the target.")
@click.option("--draft-tokens", type=click.IntRange(1, 64), metavar="N", help="Draft N tokens instead of a full block.")
@click.option("--context", type=click.IntRange(1), metavar="N", help="Context length in tokens.")
@click.option("--json", "as_json", is_flag=True, help="Print the arguments of the command as JSON.")
def command(
    engine: str,
    pair_id: str,
    drafter: str | None,
    target: str | None,
    draft_tokens: int | None,
    context: int | None,
    as_json: bool,
) -> None:
    """Print the command that runs the pair ID in another ENGINE. Prerequisites are printed to stderr."""
    pair = load_registry().resolve(pair_id, drafter)
    launch = LAUNCHERS[engine](pair, ExportOptions(target, draft_tokens, context))
    if as_json:
        print_json({"argv": launch.argv, "needs": launch.needs})
        return
    for need in launch.needs:
        print(f"# needs {printable(need)}", file=sys.stderr)
    print(launch.shell())
