"""`localdflash lsp`: run the language server, which an editor starts or connects to."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from localdflash.base.errors import LocaldflashError, UsageError
from localdflash.base.files import paths
from localdflash.base.files.typed_paths import absolute_path
from localdflash.cli.options import completion_pair_options, given_options, requested_engine
from localdflash.models.config import load_config

if TYPE_CHECKING:
    import socket


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Listen on this port of 127.0.0.1 (0: any free port); any program on this machine can connect.",
)
@click.option(
    "--socket", "path", type=click.Path(path_type=Path), help="Listen on a Unix socket; only you can connect."
)
@completion_pair_options
@click.pass_context
def command(ctx: click.Context, /, port: int | None, path: Path | None, **options: Any) -> int:
    """Run the language server on stdin and stdout, with the shared daemon or the configured server."""
    if port is not None and path is not None:
        raise UsageError("--port and --socket: choose one")
    from localdflash.cli.output import say
    from localdflash.lsp import transport
    from localdflash.lsp.lsp_methods import create_server
    from localdflash.lsp.lsp_settings import RemoteServer
    from localdflash.lsp.usage import usage_file

    config = load_config()
    usage = usage_file() if config.completion.stats == "on" else None
    model = options["pair"] if "pair" in given_options(ctx, options) else ""
    engine = RemoteServer.of(config, model) or requested_engine(ctx, options, "completion")
    transport.silence_pygls()
    if port is None and path is None:
        return transport.serve_stdio(lambda: create_server(engine, usage))
    from localdflash.server.sockets import tcp_socket

    with tcp_socket("127.0.0.1", port) if port is not None else _unix(path or Path()) as listener:
        address = listener.getsockname()
        say(f"listening on {address if path else f'{address[0]}:{address[1]}'}; Ctrl-C ends it")
        return transport.serve_socket(lambda: create_server(engine, usage), listener)


@contextmanager
def _unix(path: Path) -> "Iterator[socket.socket]":
    """Yield a listening Unix socket, and remove it at the end. UsageError if the path or its folder is unsuitable."""
    from localdflash.base.system import unix_socket
    from localdflash.server.sockets import AlreadyRunning, listening_socket, path_lock, prepare_folder

    if not unix_socket.IS_SUPPORTED:
        raise UsageError("--socket: Windows has no Unix sockets; use --port")
    path = absolute_path(str(path))
    if len(os.fsencode(path)) >= paths.SOCKET_LIMIT:
        raise UsageError(f"--socket {path}: a socket's path must be shorter than {paths.SOCKET_LIMIT} bytes")
    if os.path.lexists(path) and not path.is_socket():
        raise UsageError(f"--socket {path}: the path is not a socket; choose another path")
    try:
        prepare_folder(path)
    except LocaldflashError:
        raise UsageError(
            f"--socket {path}: its folder cannot be created or is accessible to other users; run `chmod 700` on it"
        ) from None
    try:
        with path_lock(path), listening_socket(path) as listener:
            yield listener
    except AlreadyRunning:
        raise UsageError(
            f"--socket {path}: another server is using this socket; connect to it, or choose another path"
        ) from None
