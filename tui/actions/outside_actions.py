"""Commands that run other programs: the editor for the prompt, and `!command`, whose output is attached."""

import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from textual.worker import Worker

from localdflash.base.errors import UsageError
from localdflash.chat.shell_command import run_command
from localdflash.tui.app_base import ChatAppBase, in_background


class OutsideActions(ChatAppBase):
    """Mixin with the commands that run the user's editor and shell commands."""

    _command: Worker[None] | None = None

    def run_shell_command(self, command: str) -> None:
        """Run a shell command after the user confirms it."""
        if self._command and not self._command.is_finished:
            self.complain("a command is running: Esc ends it")
            return
        self._command = self._run_outside(command)

    @in_background
    async def _run_outside(self, command: str) -> None:
        from localdflash.tui.screens.questions import Confirm

        lines = [command, "", f"It runs in {self.start.folder}. Its output is attached to your next message."]
        if not await self.push_screen_wait(Confirm("Run this command?", lines, yes="Run", no="Cancel")):
            self.prompt.put_back(f"!{command}")
            return
        self.say(f"running {command}; Esc ends it")
        output = await run_command(command, self.start.folder)
        self.prompt.attach_output(output)
        last = output.text.rstrip().rpartition("\n")[2]
        self.say(f"its output is attached to your next message{f': {last}' if last.startswith('[') else ''}")

    def stop_shell_command(self) -> bool:
        """Stop the running shell command; return False if none is running."""
        if self.is_covered or self._command is None or self._command.is_finished:
            return False
        self._command.cancel()
        self.say("the command was ended")
        return True

    @in_background
    async def action_editor(self) -> None:
        """Write the message in the user's editor."""
        editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
        if not editor:
            raise UsageError("set EDITOR to the editor that you like, for example: export EDITOR=vim")
        if self.talk.answering:
            raise UsageError("an answer is under way: Esc stops it")
        text = self._edited(editor, self.prompt.text)
        if text != self.prompt.text:
            self.prompt.put_all(text)
        self.prompt.focus()

    def _edited(self, editor: str, text: str) -> str:
        """Return the text as edited. The app is suspended while the editor owns the terminal."""
        with tempfile.TemporaryDirectory(prefix="localdflash-") as folder:  # readable by this user alone
            file = Path(folder) / "message.md"
            file.write_text(text, encoding="utf-8", errors="replace")
            with self.suspend():
                try:
                    code = subprocess.run([*shlex.split(editor), str(file)], check=False).returncode
                except (OSError, ValueError) as error:
                    raise UsageError(f"{editor}: cannot be run: {error}") from error
            if code:
                raise UsageError(f"{editor} ended with exit code {code}: your message is as it was")
            return file.read_text(encoding="utf-8", errors="replace").removesuffix("\n")
