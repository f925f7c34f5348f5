"""`localdflash export`: print how to run a pair in vLLM, SGLang or llama-server."""

import sys

import click

from localdflash.cli import shell_completion
from localdflash.cli.output import print_json
from localdflash.models.registry.launch_commands import LAUNCHERS, Wishes
from localdflash.models.registry.registry import load_registry
from localdflash.text.sanitize import printable


@click.command()
@click.argument("engine", type=click.Choice(list(LAUNCHERS)))
@click.argument("pair_id", metavar="ID", shell_complete=shell_completion.pairs)
@click.option("--drafter", metavar="SPEC", help="Another drafter: a path, or hf:owner/name/file.")
@click.option("--target", metavar="REPO", help="For vllm and sglang: the target's repository, owner/name, or a folder.")
@click.option(
    "--draft-tokens", type=click.IntRange(1, 64), metavar="N", help="Draft N tokens a step, not a full block."
)
@click.option("--context", type=click.IntRange(1), metavar="N", help="Tokens of context.")
@click.option("--json", "as_json", is_flag=True, help="Print the command's words as JSON.")
def command(
    engine: str,
    pair_id: str,
    drafter: str | None,
    target: str | None,
    draft_tokens: int | None,
    context: int | None,
    as_json: bool,
) -> None:
    """Print the command that runs the pair ID in another ENGINE. What has to be there first goes to stderr."""
    pair = load_registry().resolve(pair_id, drafter)
    launch = LAUNCHERS[engine](pair, Wishes(target, draft_tokens, context))
    if as_json:
        print_json({"argv": launch.argv, "needs": launch.needs})
        return
    for need in launch.needs:
        print(f"# needs {printable(need)}", file=sys.stderr)
    print(launch.shell())
