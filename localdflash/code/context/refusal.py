"""Why a file is kept out of prompts."""

from enum import Enum


class Refusal(Enum):
    """The reasons, as a user is told them. What git ignores is completed all the same where somebody asks by hand."""

    SECRET = "its name is one of files with secrets"
    OUTSIDE = "it is a link to a file outside of the project"
    OURS = ".localdflashignore names it"
    GIT = ".gitignore names it"
