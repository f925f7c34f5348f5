"""Commands about the model, the instructions before the chat, and sampling."""

import asyncio
from collections.abc import Iterable

from localdflash.base.errors import ModelBusy, UsageError
from localdflash.chat import project
from localdflash.chat.answerer import ServerInfo
from localdflash.chat.sampling_settings import AUTO, SETTINGS
from localdflash.server.engine_spec import EvictionPolicy
from localdflash.tui.app_base import ChatAppBase, in_background
from localdflash.tui.captions import model_name


class ModelActions(ChatAppBase):
    """Mixin with the commands that change the model, the system prompt and sampling."""

    @in_background
    async def action_model(self, name: str = "") -> None:
        """Choose another model."""
        from localdflash.chat import model_list
        from localdflash.tui.screens.models_screen import ModelPicker

        info = self.talk.answerer.info
        if self.start.server and not name:
            model = f" with {info.pair}" if info else ""
            self.say(f"{self.start.server} answers{model}; /model ID requests another model")
            return
        current = info.pair if info else ""
        picker = ModelPicker(
            model_list.list_models, model_list.explain_fit, model_list.describe_model, model_list.pull_model, current
        )
        chosen = name or await self.show_dialog(picker)
        if not chosen:
            return
        self.say(f"loading {chosen} …")
        async with self.loading_chat():
            if not (info := await self.run_until_esc(self._load(chosen))):
                self.say(f"loading {chosen} was cancelled")
                self.send_queued(stopped=True)
                return
            parts = (f"{info.pair} is loaded: {info.context} tokens of context", info.rows, info.notice)
            self.say("; ".join(filter(None, parts)))
        self.refresh_status()
        self.count_used()

    async def _load(self, name: str) -> ServerInfo:
        await self.talk.answerer.check_model(name)  # an error here does not stop the answer
        await self.talk.stop_and_wait()
        return await self.talk.answerer.load(name)

    async def ask_when_busy(self, pair: str, busy: ModelBusy) -> EvictionPolicy:
        """Ask whether to wait for the answer that keeps the memory, or to end it; raise `busy` if cancelled."""
        from localdflash.tui.screens.questions import Option, QuestionDialog

        model = model_name(pair)
        lines = [f"{model} does not fit into memory next to that model."]
        options = Option("w", "Wait"), Option("s", "Switch now, end that answer"), Option("n", "Cancel")
        match await self.push_screen_wait(QuestionDialog(f"{busy}", lines, *options)):
            case "w":
                self.say(f"{model} is loaded when that answer is done; Esc stops waiting")
                return "wait"
            case "s":
                return "end"
        raise busy

    @in_background
    async def action_role(self, name: str = "") -> None:
        """Choose named instructions."""
        from localdflash.chat.roles import list_roles, load_role
        from localdflash.tui.screens.questions import RolePicker

        if not name:
            name = await self.show_dialog(RolePicker(list_roles())) or ""
        if name:
            await self.set_system(load_role(name), f"role {name}")

    @in_background
    async def action_system(self, text: str = "") -> None:
        """Set the user's own instructions."""
        from localdflash.tui.screens.questions import TextDialog

        if not text:
            answer = await self.push_screen_wait(TextDialog("Instructions before the chat", self.talk.system, lines=8))
            if answer is None:
                return
            text = answer
        await self.set_system(text.strip(), "instructions set" if text.strip() else "no instructions")

    async def set_system(self, text: str, notice: str) -> None:
        """Use these instructions from the next answer on."""
        await self.talk.set_instructions(text)
        self.count_used()
        self.say(f"{notice}, from the next answer on")

    def action_set(self, argument: str = "") -> None:
        """Show or change the sampling settings."""
        if not argument:
            self.say(", ".join(self._settings()))
            return
        name, _, value = argument.replace("=", " ").partition(" ")
        self._change_setting(name, value)

    def _settings(self) -> Iterable[str]:
        """Yield each setting with its value; for unset settings, the resolved default."""
        talk, info = self.talk, self.talk.answerer.info
        local_info = info if info and talk.answerer.is_localdflash else None
        resolved = talk.settings.with_defaults(local_info.sampling, local_info.context) if local_info else talk.settings
        for name in SETTINGS:
            value = talk.settings.format_value(name)
            source = " (the model's)" if local_info and name in local_info.sampling else ""
            default = f": {getattr(resolved, name):g}{source}" if local_info and value == AUTO else ""
            yield f"{name} {value}{default}"

    def action_think(self, value: str = "") -> None:
        """Turn thinking before an answer on or off."""
        self._change_setting("thinking", value or ("off" if self.talk.settings.thinking else "on"))

    def action_draft(self, value: str = "") -> None:
        """Turn drafting on or off."""
        self._change_setting("draft", value or ("off" if self.talk.settings.draft else "on"))

    def _change_setting(self, name: str, value: str) -> None:
        try:
            self.talk.settings = self.talk.settings.with_value(name, value)
        except UsageError as error:
            self.show_error(str(error))
            return
        self.say(f"{name} {self.talk.settings.format_value(name)}, from the next answer on")
        self.refresh_status()

    @in_background
    async def load_project(self) -> None:
        """Load the project's AGENTS.md if the user allowed it; announce it if the user has not decided."""
        file = await asyncio.to_thread(project.find_project_file, self.start.folder)
        if file is None or file.allowed is False:
            return
        if file.allowed is None:
            self.say(f"this project has {project.FILE_NAME}: /project on includes it, /project off excludes it")
            return
        self.talk.project = await asyncio.to_thread(file.text)
        self.count_used()

    @in_background
    async def action_project(self, value: str = "") -> None:
        """Report whether AGENTS.md is included; with "on" or "off", include or exclude it, and remember that."""
        if value not in ("", "on", "off"):
            raise UsageError(f"expected on or off, got {value!r}")
        file = await asyncio.to_thread(project.find_project_file, self.start.folder)
        if file is None:
            raise UsageError(f"there is no {project.FILE_NAME} in this folder or above it")
        if value:
            self.talk.project = await asyncio.to_thread(file.text) if value == "on" else ""
            if self.start.chats:
                await asyncio.to_thread(project.remember_decision, file, value == "on")
            self.count_used()
        state = "is included from the next answer on" if self.talk.project else "is not included"
        self.say(f"{project.FILE_NAME} {state}: {file.path}")
