"""`localdflash models rm`: delete the downloaded files of a pair."""

import sys

import click

from localdflash.base.errors import UsageError
from localdflash.cli import shell_completion
from localdflash.cli.output import print_json
from localdflash.models.memory.parts import gigabytes
from localdflash.text.sanitize import printable


@click.command("rm")
@click.argument("spec", shell_complete=shell_completion.pairs)
@click.option("--yes", is_flag=True, help="Delete without confirmation.")
@click.option("--dry-run", is_flag=True, help="Print the files that would be deleted; delete nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def remove(spec: str, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Delete the downloaded files of a pair, except files that another installed pair uses.

    SPEC is an id of `models list`, hf:owner/name:Q4_K_M, or hf:owner/name/file.gguf.
    """
    from localdflash.cli.pull import LineReport
    from localdflash.models.registry import fetching
    from localdflash.models.registry.registry import load_registry

    registry = load_registry()
    found = fetching.removal(registry.resolve(spec), registry)
    files, count = found.files, found.bytes
    if files and not (yes or dry_run):
        if not sys.stdin.isatty():
            raise UsageError("rm: needs confirmation, and stdin is not a terminal; add --yes or --dry-run")
        click.confirm(f"Delete {len(files)} files, {gigabytes(count)}?", abort=True, err=True)
    if not dry_run:
        fetching.remove(found, LineReport())
    if as_json:
        kept = [str(path) for path in found.kept]
        print_json({"deleted": not dry_run, "files": [str(file) for file in files], "bytes": count, "kept": kept})
        return
    for path in found.kept:
        print(printable(f"kept, another pair here uses it: {path}"))
    for file in files:
        print(printable(f"{'would delete' if dry_run else 'deleted'} {file}"))
    print(f"{gigabytes(count)} ({count} bytes) {'would be' if dry_run else 'are'} free" if files else "nothing is here")
