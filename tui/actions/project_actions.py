"""The command about the project's own instructions, AGENTS.md, which go along if the user has allowed it."""

import asyncio

from textual import work

from localdflash.base.errors import UsageError
from localdflash.chat import project
from localdflash.tui.base import Base, told


class ProjectActions(Base):
    """See the module."""

    @work
    @told
    async def look_for_project(self) -> None:
        """Take the file along where that is allowed; say that there is one where nobody has decided."""
        file = await asyncio.to_thread(project.find, self.start.folder)
        if file is None or file.allowed is False:
            return
        if file.allowed is None:
            self.say(f"this project has {project.NAME}: /project on sends it along, /project off never does")
            return
        self.talk.project = await asyncio.to_thread(file.text)
        self.count_used()

    @work
    @told
    async def action_project(self, value: str = "") -> None:
        """Say whether the file goes along, or decide it."""
        if value not in ("", "on", "off"):
            raise UsageError(f"expected on or off, found {value!r}")
        file = await asyncio.to_thread(project.find, self.start.folder)
        if file is None:
            raise UsageError(f"there is no {project.NAME} in this folder or above it")
        if value:
            self.talk.project = await asyncio.to_thread(file.text) if value == "on" else ""
            if self.start.chats:
                await asyncio.to_thread(project.decide, file, value == "on")
            self.count_used()
        how = "goes along, from the next answer on" if self.talk.project else "does not go along"
        self.say(f"{project.NAME} {how}: {file.path}")
