"""`localdflash chat`: a full-screen chat, a line-by-line chat, or one answer for a script."""

import gc
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from localdflash.base.errors import UsageError
from localdflash.base.files import paths
from localdflash.chat.sampling_settings import ChatSettings
from localdflash.cli import shell_completion
from localdflash.cli.options import (
    chat_pair_options,
    daemon_option,
    given_options,
    no_draft_option,
    requested_engine,
    sampling_options,
    take_sampling,
)
from localdflash.models.config import load_config
from localdflash.models.registry.defaults import chat_pair

if TYPE_CHECKING:
    from localdflash.chat.answer_sources import ServerSource
    from localdflash.chat.messages import Attachment

ResumedChat = int | Literal["latest"] | None
ESCAPE_MS = "40"  # after this delay, Esc counts as a key, not as the start of an escape sequence
NOT_256_COLOURS = r"^(linux|vt\d+|ansi|cygwin|sun)|16color|direct|truecolor"  # values of TERM
MAX_ANSWER_TOKENS = 256  # default of --max-tokens for printed answers


@click.command()
@click.option("-p", "--prompt", help="Answer this prompt and exit; @path and stdin are attached. Default: stdin.")
@click.option("--system", default="", help="System prompt.")
@click.option("--role", metavar="NAME", shell_complete=shell_completion.roles, help="Named system prompt, see /role.")
@click.option("-c", "--continue", "latest", is_flag=True, help="Continue the most recent chat in this folder.")
@click.option("--resume", type=click.IntRange(1), metavar="ID", help="Continue the chat with this id.")
@click.option("--no-log", is_flag=True, help="Do not save this chat.")
@click.option("--plain", is_flag=True, help="Chat line by line instead of on the full screen, for screen readers.")
@click.option(
    "--max-tokens",
    type=click.IntRange(1),
    help=f"Maximum tokens in an answer. [default: {MAX_ANSWER_TOKENS}; full screen: a quarter of the context]",
)
@click.option("--json", "as_json", is_flag=True, help="Print the answer and its statistics as JSON.")
@click.option("--jsonl", is_flag=True, help="Stream the answer as JSON Lines.")
@no_draft_option
@daemon_option
@chat_pair_options
@sampling_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    prompt: str | None,
    system: str,
    role: str | None,
    latest: bool,
    resume: int | None,
    no_log: bool,
    plain: bool,
    max_tokens: int | None,
    as_json: bool,
    jsonl: bool,
    no_draft: bool,
    no_daemon: bool,
    **options: Any,
) -> int:
    """Chat with the model: full screen, line by line with --plain, or a single answer with -p or text on stdin.

    Answers are printed to stdout, everything else to stderr.
    """
    sampling = take_sampling(options)
    resumed = _resumed_chat(latest, resume, no_log)
    system = _system_prompt(system, role)
    prompt, attachments = _read_prompt(prompt)
    if prompt is not None and not prompt.strip():
        raise UsageError("the prompt is empty; pass text with -p or on stdin")
    if prompt is None and (as_json or jsonl):
        raise UsageError(f"--json{'' if as_json else 'l'} needs a prompt; pass text with -p or on stdin")
    if as_json and jsonl:
        raise UsageError("--json and --jsonl: choose one")
    has_screen = sys.stdout and sys.stdout.isatty() and os.environ.get("TERM", "") not in ("", "dumb")
    if prompt is None and not plain and has_screen:
        from localdflash.base.system.early_keys import keep_early_keys
        from localdflash.cli.offer import offer_better_pair

        if options["pair"] is None:
            options["pair"] = offer_better_pair(chat_pair(load_config()))
        with keep_early_keys():
            settings = ChatSettings(**sampling, max_tokens=max_tokens, draft=not no_draft)
            chats = None if no_log else chats_file()
            return _run_screen(ctx, options, settings, chats, system, resumed, no_daemon)
    from localdflash.cli.console_chat import answer_once, open_chat

    settings = ChatSettings(**sampling, max_tokens=max_tokens or MAX_ANSWER_TOKENS, draft=not no_draft)
    chats = None if no_log or (prompt is not None and resumed is None) else chats_file()
    source = _source(ctx, options, private=no_daemon or no_draft, stages=False, no_draft=no_draft)
    with open_chat(source, chats, settings, system) as chat:
        if resumed is not None:
            chat.wait(chat.resume(resumed, system))
        if prompt is not None:
            return answer_once(chat, prompt, "json" if as_json else "jsonl" if jsonl else "text", attachments)
        from localdflash.cli.line_chat import converse

        return converse(chat)


def _read_prompt(prompt: str | None) -> "tuple[str | None, tuple[Attachment, ...]]":
    """Return the prompt and its attachments, from -p or stdin; the prompt is None if the user will type it."""
    if prompt is None and sys.stdin and sys.stdin.isatty():
        return None, ()
    from localdflash.cli.console_chat import read_attachment, read_mentions, read_stdin

    if prompt is None:
        return read_stdin(), ()
    return prompt, (*read_attachment(), *(read_mentions(prompt) if "@" in prompt else ()))


def chats_file() -> Path:
    """Return the path of the database of chats."""
    return paths.data_folder() / "chats.db"


def _run_screen(
    ctx: click.Context,
    options: dict[str, Any],
    settings: ChatSettings,
    chats: Path | None,
    system: str,
    resumed: ResumedChat,
    no_daemon: bool,
) -> int:
    os.environ.setdefault("ESCDELAY", ESCAPE_MS)
    if not os.environ.get("COLORTERM") and not re.search(NOT_256_COLOURS, os.environ.get("TERM", "")):
        os.environ.setdefault("TEXTUAL_COLOR_SYSTEM", "256")  # Rich assumes 16 colours for most values of TERM
    gc.disable()  # else 20 garbage collections slow down the imports
    from localdflash.cli.output import say
    from localdflash.tui.app_base import ChatStart
    from localdflash.tui.chat_app import ChatApp

    url = "" if no_daemon else load_config().server.url
    source = _source(ctx, options, private=no_daemon)
    debug = ctx.ensure_object(dict).get("debug", False)
    app = ChatApp(ChatStart(source, Path.cwd(), chats, settings, system, resumed, options["pair"], url, debug))
    gc.enable()
    app.run()
    if app.talk.has_unsaved_messages:
        say("not all messages were saved; the chat showed the reason")
    if chats and app.talk.chat_id:
        say(f"localdflash chat --resume {app.talk.chat_id} continues this chat")
    gc.freeze()  # saves the garbage collection at exit
    return app.return_code or 0


def _resumed_chat(latest: bool, resume: int | None, no_log: bool) -> ResumedChat:
    if latest and resume is not None:
        raise UsageError("--continue and --resume: choose one")
    resumed: ResumedChat = "latest" if latest else resume
    if resumed is not None and no_log:
        raise UsageError("--no-log cannot be used with --continue or --resume: a resumed chat is saved")
    return resumed


def _system_prompt(system: str, role: str | None) -> str:
    if role is None:
        return system
    if system:
        raise UsageError("--system and --role: choose one")
    from localdflash.chat.roles import load_role

    return load_role(role)


def _source(
    ctx: click.Context, options: dict[str, Any], *, private: bool = False, stages: bool = True, no_draft: bool = False
) -> "ServerSource":
    """Return the server that answers. `private`: a private daemon; `no_draft` needs one. `stages`: report stages."""
    from localdflash.chat.answer_sources import NamedServer, PrivateDaemon, SharedDaemon

    server = load_config().server
    if server.url and not private:
        model = options["pair"] if "pair" in given_options(ctx, options) else ""
        return NamedServer(server.url, server.key_path, model)
    engine = requested_engine(ctx, {**options, "no_draft": no_draft} if private else options, "chat")
    return (PrivateDaemon if private else SharedDaemon)(engine, shows_stages=stages)
