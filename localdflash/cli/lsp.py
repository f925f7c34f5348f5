"""`localdflash lsp`: the language server that editors start."""

from typing import Any

import click

from localdflash.cli.options import pair_options


@click.command()
@pair_options
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> int:
    """Serve completions to an editor over stdin and stdout, from the shared engine."""
    from localdflash.cli.remote import wanted
    from localdflash.lsp.server import Server

    Server(wanted(ctx, options)).start_io()
    return 0
