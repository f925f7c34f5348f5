"""Check of `localdflash doctor`, and its finding. An error in a check becomes a finding, and the next check runs."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError
from typing import Literal

from localdflash.base.errors import LocaldflashError

Status = Literal["ok", "warning", "failed"]


@dataclass(frozen=True)
class Finding:
    """Result of a check. "failed": localdflash cannot work. `remedy`: what the user can do, or ""."""

    name: str
    status: Status
    detail: str
    remedy: str = ""


@dataclass(frozen=True)
class DoctorCheck:
    """Check of `localdflash doctor`. `remedy`: what the user can do if `run` raises an error."""

    name: str
    run: Callable[[str], Finding]
    remedy: str
    required: bool = True  # an error means "failed", otherwise "warning"
    slow: bool = False  # only `doctor --full` runs it

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
        except Exception as error:
            detail = f"{type(error).__name__}: {error}"
        return Finding(self.name, "failed" if self.required else "warning", detail, self.remedy)
