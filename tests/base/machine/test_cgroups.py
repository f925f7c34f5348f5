"""Control groups of this process."""

from pathlib import Path

import pytest

from localdflash.base.machine import cgroups


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0::/\n", [""]),  # a container
        (
            "0::/user.slice/user-1000.slice/app.service\n",
            ["user.slice/user-1000.slice/app.service", "user.slice/user-1000.slice", "user.slice", ""],
        ),
        ("9:name=systemd:/\n4:memory:/docker/ab\n", [""]),  # cgroup v1
        ("0::/../../elsewhere\n", [""]),
        (None, [""]),  # not Linux
    ],
)
def test_the_groups_around_this_process(
    text: str | None, found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "MEMBERSHIP", tmp_path / "cgroup")
    if text is not None:
        (tmp_path / "cgroup").write_text(text)
    assert cgroups.folders() == [cgroups.ROOT / folder for folder in found]
