"""`localdflash connect`: print, write or try the settings with which a coding agent uses the daemon."""

import json
import os
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from localdflash.base.errors import LocaldflashError, UsageError
from localdflash.base.files import paths
from localdflash.cli.output import say

NAME = "localdflash"  # name of the provider and of the model
DEFAULT_PORT, DEFAULT_CONTEXT = 8080, 32768
MIN_COMPACT_WINDOW = 100_000  # tokens; Claude Code warns of less, and compacts when a prompt is refused
QUESTION = "Say hello."
PROGRAMS = ("claude", "codex", "opencode", "pi", "aider", "zed", "continue", "llm")
CODEX = """\
[model_providers.localdflash]
name = "localdflash"
base_url = {url}
wire_api = "responses"

[model_providers.localdflash.auth]
command = "cat"
args = [{key_file}]
"""
LLM = """\
- model_id: localdflash
  model_name: localdflash
  api_base: {url}
  api_key_name: localdflash  # only a name: the key comes with the command
  supports_tools: true
"""
CONTINUE = """\
name: localdflash
version: 0.0.1
schema: v1
models:
  - name: localdflash
    provider: openai
    model: localdflash
    apiBase: {url}
    apiKey: {key}
    roles: [chat, edit, apply]
    defaultCompletionOptions: {{contextLength: {context}}}
"""


@dataclass(frozen=True)
class Settings:
    """Settings file of an agent: a JSON object to merge, or text to append. `alone`: only write to an empty file."""

    path: Path
    content: Mapping[str, Any] | str
    alone: bool = False

    @property
    def text(self) -> str:
        """Return the settings as text."""
        return self.content if isinstance(self.content, str) else json.dumps(self.content, indent=2) + "\n"

    def write(self) -> None:
        """Merge the settings into the file; UsageError if that is impossible. A repeated call changes nothing."""
        from localdflash.base.files.json_file import replace_file

        try:
            before = self.path.read_text("utf-8") if self.path.exists() else ""
            after = self._merge_into(before)
        except (ValueError, RecursionError):  # the file is not UTF-8, has comments, as Zed's may, or is no object
            raise UsageError(f"{self.path}: cannot be merged; add the printed lines yourself") from None
        if after != before:
            mode = stat.S_IMODE(self.path.stat().st_mode) if before else 0o600  # Continue's settings hold the key
            replace_file(self.path.resolve(), after, mode=mode)  # follows a symbolic link

    def _merge_into(self, before: str) -> str:
        """Return the text of a file after the merge; ValueError if that is impossible."""
        if isinstance(self.content, str):
            if self.content in before:
                return before
            if before and (self.alone or NAME in before):
                raise ValueError
            return f"{before.rstrip()}\n\n{self.content}".lstrip()
        old = json.loads(before or "{}")
        if not isinstance(old, dict):
            raise ValueError
        return json.dumps(_merge(old, self.content), indent=2, ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class Agent:
    """Coding agent: command, arguments for one turn. The API key goes into `key_variable`, or after `key_option`."""

    settings: Settings
    command: Sequence[str] = ()
    turn: Sequence[str] = ()
    key_variable: str = ""
    key_option: str = ""

    def shell_command(self, key_file: Path) -> str:
        """Return the command as a shell command line that reads the key from its file."""
        key = f'"$(cat {shlex.quote(str(key_file))})"'
        variable = f"{self.key_variable}={key} " if self.key_variable else ""
        return variable + shlex.join(self.command) + (f" {self.key_option} {key}" if self.key_option else "")

    def run_turn(self, key: str) -> None:
        """Run one turn in an empty folder; LocaldflashError if the program is missing or fails."""
        program, *rest = self.command
        if not (found := shutil.which(program)):
            raise LocaldflashError(f"{program}: not installed")
        arguments = [found, *rest, *self.turn, *([self.key_option, key] if self.key_option else [])]
        environment = {**os.environ, **({self.key_variable: key} if self.key_variable else {})}
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(arguments, cwd=folder, env=environment, stdin=subprocess.DEVNULL, check=False)
        if done.returncode:
            raise LocaldflashError(f"{program}: failed (exit code {done.returncode})")


def make_agent(program: str, url: str, key_file: Path, key: str, context: int) -> Agent:
    """Return the agent `program` with settings for the daemon at `url`."""
    model: dict[str, Any]
    options: list[str]
    api, home, cat = f"{url}/v1", Path.home(), f"cat {shlex.quote(str(key_file))}"
    match program:
        case "claude":
            file = home / ".claude" / "localdflash.json"  # a separate file, so that the user's settings stay unchanged
            env = {"ANTHROPIC_BASE_URL": url}
            if context >= MIN_COMPACT_WINDOW:
                env["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] = str(context)
            content: dict[str, Any] = {"apiKeyHelper": cat, "env": env}
            agent = Agent(Settings(file, content), ["claude", "--settings", str(file)], ["-p", QUESTION])
        case "codex":
            quoted = {"url": json.dumps(api), "key_file": json.dumps(str(key_file))}
            options = ["-c", f"model_provider={NAME}", "-c", f"model_context_window={context}", "-m", NAME]
            file = Path(os.environ.get("CODEX_HOME") or home / ".codex") / "config.toml"
            turn = ["exec", "--skip-git-repo-check", QUESTION]
            agent = Agent(Settings(file, CODEX.format(**quoted)), ["codex", *options], turn)
        case "opencode":
            file = home / ".config" / "opencode" / "opencode.json"
            model = {"limit": {"context": context, "output": context // 8}}
            access: dict[str, Any] = {"baseURL": api, "apiKey": f"{{file:{key_file}}}"}
            provider: dict[str, Any] = {"npm": "@ai-sdk/openai-compatible", "options": access, "models": {NAME: model}}
            turn = ["run", "-m", f"{NAME}/{NAME}", QUESTION]
            agent = Agent(Settings(file, {"provider": {NAME: provider}}), ["opencode"], turn)
        case "pi":
            model = {"id": NAME, "contextWindow": context, "maxTokens": context // 8}
            provider = {"baseUrl": api, "api": "openai-completions", "apiKey": f"!{cat}", "models": [model]}
            file = home / ".pi" / "agent" / "models.json"
            options = ["--provider", NAME, "--model", NAME]
            agent = Agent(Settings(file, {"providers": {NAME: provider}}), ["pi", *options], ["-p", QUESTION])
        case "aider":
            file = home / ".aider.localdflash.yml"
            text = f"model: openai/{NAME}\nopenai-api-base: {api}\nshow-model-warnings: false\n"
            turn = ["--no-git", "--yes-always", "--message", QUESTION]
            agent = Agent(Settings(file, text, alone=True), ["aider", "--config", str(file)], turn, "OPENAI_API_KEY")
        case "zed":
            model = {"name": NAME, "max_tokens": context}
            provider = {"api_url": api, "available_models": [model]}
            content = {"language_models": {"openai_compatible": {NAME: provider}}}
            file = home / ".config" / "zed" / "settings.json"
            agent = Agent(Settings(file, content), ["zed"], key_variable="LOCALDFLASH_API_KEY")
        case "llm":
            file = Path(os.environ.get("LLM_USER_PATH") or click.get_app_dir("io.datasette.llm"))
            settings = Settings(file / "extra-openai-models.yaml", LLM.format(url=api))
            agent = Agent(settings, ["llm", "-m", NAME], [QUESTION], key_option="--key")
        case _:
            text = CONTINUE.format(url=api, key=key, context=context)
            agent = Agent(Settings(home / ".continue" / "config.yaml", text, alone=True))
    return agent


def _merge(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return `old` updated by `new`; nested objects are merged."""
    both = {k: _merge(old[k], v) for k, v in new.items() if isinstance(v, dict) and isinstance(old.get(k), dict)}
    return {**old, **new, **both}


@click.command()
@click.argument("program", type=click.Choice(PROGRAMS))
@click.option("--write", is_flag=True, help="Merge the settings into the agent's file.")
@click.option("--check", is_flag=True, help="Run one turn with the written settings.")
@click.option("--url", metavar="URL", help=f"Address of the engine, if its port is not {DEFAULT_PORT}.")
def command(program: str, write: bool, check: bool, url: str | None) -> None:
    """Print the settings with which a coding agent uses the daemon, and the command that uses these settings."""
    from localdflash.models.config import load_config
    from localdflash.server.client import find_daemon
    from localdflash.server.tcp import load_or_create_key

    url = (url or f"http://127.0.0.1:{load_config().server.port or DEFAULT_PORT}").rstrip("/").removesuffix("/v1")
    client, key_file = find_daemon(), paths.key_file()
    key = load_or_create_key(key_file)
    context = (client.get("/ps").get("context") if client else None) or DEFAULT_CONTEXT
    agent = make_agent(program, url, key_file, key, context)
    if write:
        agent.settings.write()
        say(f"{agent.settings.path}: written")
    elif not check:
        say(f"{agent.settings.path}:")
        print(agent.settings.text, end="")
    if check:
        _check(agent, url, key)
    elif agent.command:
        say(f"use it with: {agent.shell_command(key_file)}")


def _check(agent: Agent, url: str, key: str) -> None:
    from localdflash.server.address import Address
    from localdflash.server.client import Client

    server = Client(Address.of_url(url, key))
    if server.health().get("status") != "ok":
        raise LocaldflashError(f"{url}: no model is loaded")
    if agent.turn:
        agent.run_turn(key)
        return
    body = {"model": NAME, "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 32}
    print(server.post("/v1/chat/completions", body)["choices"][0]["message"]["content"])
