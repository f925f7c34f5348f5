"""Run a check so that anything that goes wrong in it becomes a finding."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from typing import Literal

from localdflash.base.errors import LocaldflashError

Status = Literal["ok", "warning", "failed"]


@dataclass(frozen=True)
class Finding:
    """A finding. `failed` means that localdflash cannot work without it; `remedy` is empty if there is nothing to
    do.
    """

    name: str
    status: Status
    detail: str
    remedy: str = ""


@dataclass(frozen=True)
class DoctorCheck:
    """A check to run, and what helps if it cannot be run at all."""

    name: str
    run: Callable[[str], Finding]
    remedy: str
    required: bool = True
    slow: bool = False  # takes seconds: run by `doctor --full` only

    def check(self) -> Finding:
        """Run the check and return its finding."""
        try:
            return self.run(self.name)
        except PackageNotFoundError:
            detail = "not installed"
        except LocaldflashError as error:
            detail = str(error)
        except (ImportError, OSError) as error:
            detail = f"cannot be loaded: {error}"
        except Exception as error:  # a check that breaks must not hide what the others find
            detail = f"{type(error).__name__}: {error}"
        return Finding(self.name, "failed" if self.required else "warning", detail, self.remedy)
