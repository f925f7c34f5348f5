"""Commands about answers (send, stop, retry, edit, continue), the editor and shell commands."""

import asyncio
import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from textual import on, work
from textual.worker import Worker

from localdflash.base.errors import ContextOverflow, LocaldflashError, UsageError
from localdflash.chat.messages import Attachment, Message
from localdflash.chat.shell_command import parse_command, run_command
from localdflash.tui.actions.context_actions import ContextActions
from localdflash.tui.app_base import in_background
from localdflash.tui.commands import parse
from localdflash.tui.prompt_field import Prompt

READ_AHEAD_SECONDS = 0.3  # interval of prefills of the message being typed
PREVIOUS_KEPT = "the previous answer is kept"
TypedMessage = tuple[str, tuple[Attachment, ...]]  # text and attachments in the prompt


@dataclass(frozen=True)
class _Undo:
    """State to restore if a retry fails, or an edit fails or is cancelled: the messages removed from the chat."""

    chat: list[Message]
    length: int  # number of messages of the chat without the removed ones
    removed: list[Message]
    dropped: int  # value of `Talk.dropped` before the removal


class AnswerActions(ContextActions):
    """Mixin with the commands that send messages and stop, retry, edit and continue answers."""

    _edit_undo: _Undo | None = None
    _is_starting = False  # whether an answer was requested, and its worker has not begun
    _read_ahead_worker: Worker[None] | None = None
    _prefilled = ""  # text of the last prefill
    _shell_worker: Worker[None] | None = None

    @on(Prompt.Changed)
    def _prompt_changed(self) -> None:
        if self._read_ahead_worker is None or self._read_ahead_worker.is_finished:
            self._read_ahead_worker = self._read_ahead()

    @work
    async def _read_ahead(self) -> None:
        """Prefill the KV cache with the message being typed, to shorten the time to first token."""
        read: TypedMessage | None = None
        while self._typed_message() != read:
            await asyncio.sleep(READ_AHEAD_SECONDS)
            read = self._typed_message()
            if read and not self.talk.is_answering and not self.chats_loading:
                messages = [*self.talk.messages[self.talk.dropped :], Message("user", *read)]
                self._prefilled = read[0]
                await self.talk.answerer.read_ahead(messages, self.talk.settings, system=self.talk.system_prompt)

    def _typed_message(self) -> TypedMessage | None:
        """Return the message in the prompt; None for commands and for text with file mentions."""
        text = self.prompt.text
        if not text.strip() or text.startswith("/") or "@" in text:
            return None
        return text, self.prompt.attachments

    @on(Prompt.Submitted)
    def _submitted(self, event: Prompt.Submitted) -> None:
        self.transcript.expect_note()
        try:
            command = parse(event.text)
        except UsageError as error:
            self.show_error(str(error))
            self.prompt.put_back(event.text, event.attachments)
            return
        if command is None and (shell_command := parse_command(event.text)):
            self.run_shell_command(shell_command)
            return
        if command is None:
            self.ask(event.text, event.attachments)
            return
        self.prompt.put_back("", event.attachments)
        self.run_command(*command)

    def ask(self, text: str, attachments: Sequence[Attachment] = ()) -> None:
        """Send a message, or queue it while an answer is generated."""
        if self._read_ahead_worker and not text.startswith(self._prefilled):
            self._read_ahead_worker.cancel()  # the answer must not wait for the prefill of another text
        if is_answering := self.talk.is_answering or self._is_starting:
            self.say("your message is sent when this answer is done; Esc stops the answer")
        elif self.cancellable_task:
            self.say("your message is sent when the model is loaded")
        if is_answering or self.chats_loading:
            self.queued.append((text, attachments))
            return
        undo = self._edit_undo if self.is_editing else None
        self.add(self.talk.add_user_message(text, attachments))
        self.begin_answer(undo=undo)

    def add(self, message: Message) -> None:
        """Append a message to the transcript."""
        self.query_one("#welcome").display = False
        self.transcript.add(message)

    def begin_answer(self, *, continue_last: bool = False, undo: _Undo | None = None) -> None:
        """Generate an answer to the last message, or continue the last answer (`continue_last`).

        `undo`: state to restore if a retry or an edit fails before any text was received.
        """
        self._is_starting = True
        self._answer(self.talk.messages, continue_last, undo)

    @in_background
    async def _answer(self, chat: list[Message], continue_last: bool, undo: _Undo | None) -> None:
        self._is_starting = False
        if self.talk.is_answering or chat is not self.talk.messages:  # another chat was opened meanwhile
            return
        self.errors.clear()
        if not continue_last:
            self.add(Message("assistant", ""))
        self.refresh_status()
        try:
            answer = await self.talk.answer(self.transcript.feed, self._restart_answer, continue_last=continue_last)
        except ContextOverflow as error:
            self._restore_chat()
            self.chats_loading += 1
            try:
                if problem := await self.make_room(error, continue_last=continue_last):
                    self._return_question(problem, continue_last, undo)
                else:
                    self.begin_answer(continue_last=continue_last, undo=undo)
            finally:
                self.chats_loading -= 1
            return
        except LocaldflashError as error:
            hint = "Ctrl+R retries" + (", Ctrl+G continues" if self._ends_with_answer() else "")
            self.send_queued(stopped=True)
            if self._restore_messages(undo):
                hint = PREVIOUS_KEPT
            self._restore_chat()
            self.show_error(f"{error}; {hint}")
            return
        finally:
            self.refresh_status()
        self.transcript.finish(answer)
        if self.talk.context_tokens is None:
            self.count_used()
        if answer.finish == "gone":
            self.show_error(f"{self.talk.error}; Ctrl+G continues the answer, Ctrl+R retries")
        self.send_queued(stopped=answer.finish in ("cancelled", "gone"))

    def _restore_chat(self) -> None:
        """Redraw the chat without the failed answer, then repeat the errors reported meanwhile."""
        errors, self.errors = self.errors, []
        self.show_chat()
        for line in errors:
            self.show_error(line)

    def _restore_messages(self, undo: _Undo | None) -> bool:
        """Restore the messages that a failed retry or edit removed, and return an edited message to the prompt.

        Return False if no message was removed, or if the new answer has begun.
        """
        talk = self.talk
        if undo is None or not undo.removed or undo.chat is not talk.messages or self._ends_with_answer():
            return False
        edited = talk.messages[undo.length :]  # empty for a retry
        talk.messages[undo.length :] = undo.removed
        talk.dropped = max(talk.dropped, undo.dropped)
        for message in edited:
            self.prompt.put_back(message.text, message.attachments)
        return True

    def _restart_answer(self) -> None:
        self.transcript.replace_last(self.talk.messages[-1])

    def _ends_with_answer(self) -> bool:
        return bool(self.talk.messages) and self.talk.messages[-1].role == "assistant"

    def send_queued(self, *, stopped: bool) -> None:
        """See `ChatAppBase`."""
        while stopped and self.queued:
            self.prompt.put_back(*self.queued.pop())  # the oldest last, so that it is first in the prompt
        if self.queued and not (self.talk.is_answering or self._is_starting):
            self.ask(*self.queued.pop(0))

    def _return_question(self, reason: str, continue_last: bool, undo: _Undo | None) -> None:
        """Return the unanswered question to the prompt, and restore the messages before a retry or an edit.

        A partial answer that cannot continue stays unchanged.
        """
        if continue_last:
            self.show_error(f"the answer cannot continue: {reason}")
            self.send_queued(stopped=True)
            return
        self.send_queued(stopped=True)
        notice = PREVIOUS_KEPT
        if not self._restore_messages(undo):
            question = self.talk.remove_user_message()
            self.prompt.put_back(question.text, question.attachments)
            notice = "your message is back in the prompt"
        self.show_chat()
        self.show_error(f"{reason}; {notice}")

    def action_stop(self) -> None:
        """Stop the answer, or cancel the edit of a message."""
        if self.cancellable_task:
            self.cancellable_task.cancel()
        elif not (self.stop_shell_command() or self.cancel_edit()):
            self.talk.stop()

    def action_retry(self) -> None:
        """Answer the last message again."""
        self._ask_again(keep_question=True)

    @in_background
    async def _ask_again(self, *, keep_question: bool) -> None:
        await self.talk.stop_and_wait()
        self.cancel_edit()
        talk, before, dropped = self.talk, list(self.talk.messages), self.talk.dropped
        if keep_question:
            talk.remove_answer()
        else:
            question = talk.remove_user_message()
        undo = _Undo(talk.messages, len(talk.messages), before[len(talk.messages) :], dropped)
        self.show_chat()
        if keep_question:
            self.begin_answer(undo=undo)
            return
        self._edit_undo = undo
        self.say("Enter asks again; Esc leaves the chat as it was")
        self.prompt.put_back(question.text, question.attachments)
        self.prompt.focus()

    @property
    def is_editing(self) -> bool:
        """Return whether the last message is being edited."""
        edit, talk = self._edit_undo, self.talk
        return edit is not None and edit.chat is talk.messages and len(talk.messages) == edit.length

    def cancel_edit(self) -> bool:
        """Restore the edited message and its answer; return False if no message is being edited."""
        talk, edit, is_editing, self._edit_undo = self.talk, self._edit_undo, self.is_editing, None
        if edit is None or not is_editing or talk.is_answering:
            return False
        talk.messages.extend(edit.removed)
        talk.dropped = edit.dropped
        if self.prompt.text == edit.removed[0].text:
            self.prompt.put_all("")
            self.prompt.detach()
        self.show_chat()
        return True

    @on(Prompt.EditLast)
    def action_edit(self) -> None:
        """Move the last message back into the prompt for editing."""
        self._ask_again(keep_question=False)

    def action_continue(self) -> None:
        """Continue an answer that was cut off."""
        if self.talk.is_answering:
            return
        self.cancel_edit()
        if not self._ends_with_answer():
            self.show_error("this chat has no answer to continue")
            return
        self.begin_answer(continue_last=True)

    @in_background
    async def action_previous(self) -> None:
        """Show the previous version of the last answer."""
        await self._show_version(-1)

    @in_background
    async def action_next(self) -> None:
        """Show the next version of the last answer."""
        await self._show_version(1)

    async def _show_version(self, step: int) -> None:
        if self.talk.is_answering:
            return
        async with self.loading_chat():
            if await self.talk.show_version(step):
                self.show_chat()
                return
        self.say("there is no earlier version" if step < 0 else "there is no later version")

    def run_shell_command(self, command: str) -> None:
        """Run a shell command after the user confirms it."""
        if self._shell_worker and not self._shell_worker.is_finished:
            self.show_error("a command is running; Esc ends it")
            return
        self._shell_worker = self._confirm_and_run(command)

    @in_background
    async def _confirm_and_run(self, command: str) -> None:
        lines = [command, "", f"It runs in {self.start.folder}. Its output is attached to your next message."]
        if not await self.confirm("Run this command?", lines, "Run"):
            self.prompt.put_back(f"!{command}")
            return
        self.say(f"running {command}; Esc ends it")
        output = await run_command(command, self.start.folder)
        self.prompt.attach_output(output)
        last = output.text.rstrip().rpartition("\n")[2]
        self.say(f"the command's output is attached to your next message{f': {last}' if last.startswith('[') else ''}")

    def stop_shell_command(self) -> bool:
        """Stop the running shell command; return False if none is running."""
        if self.is_covered or self._shell_worker is None or self._shell_worker.is_finished:
            return False
        self._shell_worker.cancel()
        self.say("the command was ended")
        return True

    @in_background
    async def action_editor(self) -> None:
        """Write the message in the user's editor."""
        editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
        if not editor:
            raise UsageError("no editor is set; set EDITOR, for example `export EDITOR=vim`")
        if self.talk.is_answering:
            raise UsageError("an answer is in progress; Esc stops it")
        text = self._edit_in(editor, self.prompt.text)
        if text != self.prompt.text:
            self.prompt.put_all(text)
        self.prompt.focus()

    def _edit_in(self, editor: str, text: str) -> str:
        """Return the text after editing. The app is suspended while the editor uses the terminal."""
        with tempfile.TemporaryDirectory(prefix="localdflash-") as folder:  # private to this user
            file = Path(folder) / "message.md"
            file.write_text(text, encoding="utf-8", errors="replace")
            with self.suspend():
                before = signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is for the editor
                try:
                    code = subprocess.run([*shlex.split(editor), str(file)], check=False).returncode
                except (OSError, ValueError) as error:
                    raise UsageError(f"{editor}: cannot be run: {error}") from error
                finally:
                    signal.signal(signal.SIGINT, before)
            if code:
                raise UsageError(f"{editor} ended with exit code {code}: your message is unchanged")
            return file.read_text(encoding="utf-8", errors="replace").removesuffix("\n")
