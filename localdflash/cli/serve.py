"""`localdflash serve`: run the daemon in the foreground, or stop the running daemon."""

import gc
from collections.abc import Collection, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from localdflash.base.errors import LocaldflashError, UsageError
from localdflash.base.files import paths
from localdflash.cli.options import given_options, pair_options
from localdflash.cli.output import say
from localdflash.server.engine_spec import ROLES, PairRole

if TYPE_CHECKING:
    from localdflash.models.config import Config
    from localdflash.server.tcp import TcpPort

MB = 1_000_000


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), help="Also listen on this TCP port, for other programs.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Host name or IP address for --port.")
@click.option("--i-know", is_flag=True, help="Allow a --host that other machines can reach; traffic is not encrypted.")
@click.option(
    "--idle",
    type=click.FloatRange(0),
    default=0,
    metavar="MINUTES",
    help="Exit after this many minutes without a request (0: never).",
)
# Eager: it runs before the other options read their defaults from a config file that may be invalid.
@click.option(
    "--stop",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda ctx, _, stops: ctx.exit(_stop()) if stops else None,
    help="Stop the running daemon and exit.",
)
@click.option("--log", type=click.Path(path_type=Path), help="Write stderr to this file, 2 MB at most.")
@click.option("--install-unit", is_flag=True, help="Write a systemd user unit that runs `localdflash serve`, and exit.")
# --private: listen on this socket for the parent process only; exit when stdin closes.
@click.option("--private", type=click.Path(path_type=Path), hidden=True)
@click.option("--no-draft", is_flag=True, hidden=True, help="Load no drafter, and do not draft.")
@click.option("--role", type=click.Choice(ROLES), hidden=True, help="Role of the pair; default: all that it supports.")
@pair_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    port: int | None,
    host: str,
    i_know: bool,
    idle: float,
    log: Path | None,
    install_unit: bool,
    private: Path | None,
    no_draft: bool,
    role: PairRole | None,
    **options: Any,
) -> int:
    """Run the daemon that editors and the other commands share, until Ctrl-C.

    Clients connect through a Unix socket (on Windows, a localhost TCP port protected by a secret), and start the daemon
    if none runs. Use this command to choose its options, or to open a TCP port. In a running daemon, --port opens the
    port until Ctrl-C. --pair loads one pair for chat and, if it can infill, for completions. Default: a pair for each.
    """
    if install_unit:
        return _install_unit(ctx)
    gc.disable()  # else 150 garbage collections slow down the imports
    from localdflash.models.config import load_config
    from localdflash.models.load_options import Options
    from localdflash.server.daemon import DaemonSettings, serve
    from localdflash.server.sockets import AlreadyRunning

    gc.freeze()  # later collections skip the modules
    gc.enable()
    config, port_requested = load_config(), port is not None
    port = config.server.port or None if port is None else port
    tcp = None if port is None or private else _tcp(host, port, i_know)
    all_roles = role is None and "pair" not in given_options(ctx, options)
    options["pair"], roles, other_pairs = _assign_roles(config, options["pair"], role, all_roles=all_roles)
    settings = DaemonSettings(
        Options(**options, draft=not no_draft),
        cache_bytes=None if config.server.cache_mb is None else config.server.cache_mb * MB,
        disk_bytes=0 if private else config.server.disk_cache_mb * MB,
        queue=config.server.queue,
        idle=idle * 60,
        tcp=tcp,
        log=log,
        roles=roles,
        other_pairs=other_pairs,
        preload_all=all_roles,
        refuses_unknown=config.server.unknown_models == "refuse",
        private=private,
    )
    try:
        serve(settings, say)
    except AlreadyRunning:
        if private:
            raise
        if not (tcp and port_requested):  # without --port there is nothing to add to the running daemon
            raise _already_running_error() from None
        _listen_in_running_daemon(tcp, {name: options[name] for name in given_options(ctx, options)})
    return 0


def _assign_roles(
    config: "Config", pair: str, role: PairRole | None, *, all_roles: bool
) -> tuple[str, Sequence[PairRole], Mapping[PairRole, str]]:
    """Return the pair to load first, its roles, and the other roles' pairs; ModelError if it cannot complete."""
    from localdflash.loading.completion_support import require_completion, supports_completion
    from localdflash.models.registry import defaults

    pairs: Mapping[PairRole, str] = {"chat": defaults.chat_pair(config), "completion": defaults.completion_pair(config)}
    roles: Sequence[PairRole]
    if all_roles and pairs["chat"] != pairs["completion"]:
        pair, roles = pairs["completion"], ("completion",)
    elif role is None:
        pair = pairs["chat"] if all_roles else pair
        roles = ROLES if supports_completion(pair) else ("chat",)
    else:
        roles = (role,)
    if roles == ("completion",):
        require_completion(pair)
    return pair, roles, {other: name for other, name in pairs.items() if other not in roles}


def _stop() -> int:
    from localdflash.server.client import find_daemon
    from localdflash.server.spawn import stop

    if client := find_daemon():
        stop(client)
    say("the daemon has stopped" if client else "no daemon is running")
    return 0


def _install_unit(ctx: click.Context) -> int:
    """Write the systemd unit, and print how to enable it. UsageError if another option is given."""
    from localdflash.cli import systemd_unit

    if given_options(ctx, ctx.params) - {"install_unit"}:
        raise UsageError("--install-unit: no other option may be given; the unit follows the settings of config.toml")
    say(f"{systemd_unit.install_unit()}; enable it with:")
    print(*systemd_unit.ENABLE, sep="\n")
    return 0


def _listen_in_running_daemon(tcp: "TcpPort", requested: Mapping[str, object]) -> None:
    """Let the running daemon listen on `tcp` until Ctrl-C or its exit. LocaldflashError if its options differ."""
    from localdflash.server.client import find_daemon

    if not (client := find_daemon()):
        raise _already_running_error()
    status = client.get("/ps")
    if any(status["options"].get(name) != value for name, value in requested.items()):
        raise _already_running_error()
    with suppress(KeyboardInterrupt), closing(client.stream("/listen", tcp.listen_request())) as events:
        for event in events:
            line = tcp.describe(event["url"])
            say(f"until this command exits, the running daemon (process {status['pid']}) is {line}")
        say("the daemon has stopped; this port is closed")


def _already_running_error() -> LocaldflashError:
    """Return the error that a daemon is running, and how to stop it; or that a daemon is starting or stopping."""
    from localdflash.server.client import find_daemon
    from localdflash.server.sockets import is_listening, other_transport_path

    if is_listening(other_path := other_transport_path(paths.daemon_socket())):
        return LocaldflashError(
            f"a daemon is already running at {other_path}; stop it with `{paths.TRANSPORT_VARIABLE}="
            f"{paths.transport_of(other_path)} localdflash serve --stop`, or unset {paths.TRANSPORT_VARIABLE}"
        )
    if not (client := find_daemon()):
        return LocaldflashError("another daemon is starting or stopping; try again")
    status = client.get("/ps")
    return LocaldflashError(
        f"a daemon is already running (process {status['pid']}, pair {status['pair']}); use it, or stop it with"
        " `localdflash serve --stop`"
    )


def _tcp(host: str, port: int, i_know: bool) -> "TcpPort":
    """Return the TCP port to open. UsageError if other machines can reach `host`, unless `i_know`."""
    from localdflash.models.config import is_loopback
    from localdflash.server.guard import LOOPBACK
    from localdflash.server.tcp import TcpPort, load_or_create_key

    is_public = not is_loopback(host)
    if is_public and not i_know:
        raise UsageError(
            f"--host {host}: other machines could reach the daemon over an unencrypted connection;"
            " add --i-know to allow this"
        )
    path = paths.key_file()
    return TcpPort(host, port, load_or_create_key(path), _own_names(host) if is_public else LOOPBACK, path)


def _own_names(host: str) -> Collection[str]:
    """Return the host names and IP addresses of this machine, as clients write them in a Host header."""
    import socket

    import psutil

    from localdflash.server.guard import LOOPBACK

    names = {host, socket.gethostname(), socket.getfqdn(), f"{socket.gethostname()}.local"}
    for addresses in psutil.net_if_addrs().values():
        names |= {one.address.split("%")[0] for one in addresses if one.family in (socket.AF_INET, socket.AF_INET6)}
    return LOOPBACK | {f"[{name}]" if ":" in name else name for name in names}
