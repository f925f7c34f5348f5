"""Commands about looks, help and leaving."""

import asyncio
from dataclasses import replace

from localdflash.base.errors import LocaldflashError
from localdflash.base.files.strict_toml import did_you_mean
from localdflash.tui import saved_state
from localdflash.tui.base import Base
from localdflash.tui.themes import THEMES


class ViewActions(Base):
    """See the module."""

    _leaving = False
    _sought = ""  # by /find

    def action_thoughts(self) -> None:
        """Unfold or fold what the model thought."""
        self.transcript.thoughts = not self.transcript.thoughts

    def action_find(self, words: str = "") -> None:
        """Show where words stand in this chat; without words the place before the last one that was found."""
        if words and words != self._sought:
            self._sought = words
            self.transcript.forget_found()
        if not self._sought:
            self.prompt.put_back("/find ")
            self.prompt.focus()
            return
        if found := self.transcript.find(self._sought):
            self.notify(f"{self._sought}: {found[0]} of {found[1]}; Ctrl+F: the one before", markup=False)
        else:
            self.notify(f"{self._sought}: nowhere in this chat", markup=False)

    def action_theme(self, name: str = "") -> None:
        """Use another theme; the next one if none is named."""
        names = list(THEMES)
        if not name:
            at = names.index(self.theme) if self.theme in names else -1
            name = names[(at + 1) % len(names)]
        if name not in THEMES:
            self.complain(f"no theme {name!r}{did_you_mean(name, names) or ': one of ' + ', '.join(names)}")
            return
        self.theme = name
        if not self.start.chats:
            return
        try:
            saved_state.save(replace(saved_state.load(), theme=name))
        except LocaldflashError as error:
            self.complain(str(error))

    def action_help(self) -> None:
        """Show commands and keys."""
        from localdflash.tui.screens.help_screen import HelpScreen

        self.push_screen(HelpScreen())

    async def action_quit(self) -> None:
        """Leave; an answer under way is stopped and kept as far as it came."""
        if self._leaving:  # /quit and Ctrl+Q: the first one still stores what there is
            return
        self._leaving = True
        await self.talk.close()
        await self.talk.answerer.close()
        self.files.close()
        await asyncio.to_thread(self.history.close)
        self.exit(0)
