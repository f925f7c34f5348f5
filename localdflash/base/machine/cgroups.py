"""Folders with the limits of this process's control groups (cgroup v2): a container's, or a systemd unit's."""

from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def folders() -> list[Path]:
    """Return the folder of this process's group, then those of the groups around it: the limits of all apply."""
    try:
        lines = MEMBERSHIP.read_text().splitlines()
    except OSError:  # not Linux
        lines = []
    own = next((line.removeprefix("0::/") for line in lines if line.startswith("0::/")), "")
    parts = [] if ".." in own else Path(own).parts  # "..": the group is outside of what this container sees
    return [ROOT.joinpath(*parts[:count]) for count in range(len(parts), -1, -1)]
