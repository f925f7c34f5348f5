import json

import pytest

from localdflash.base.machine import hardware as machine
from localdflash.base.machine import measurements
from localdflash.base.system import limits


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "load_average", lambda: 0.0)


def test_bandwidth_is_measured_once_a_week_for_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = iter([42.0, 7.0, 8.0])
    monkeypatch.setattr(machine, "bandwidth", lambda: next(speeds))
    first = measurements.bandwidth()
    assert (first.value, measurements.bandwidth()) == (42.0, first)
    assert "256 MB on" in first.how
    monkeypatch.setattr(measurements, "machine", lambda: "another machine")
    assert measurements.bandwidth().value == 7.0
    stored = json.loads(measurements.file().read_text("utf-8"))
    old = {name: found | {"day": "2026-01-01"} for name, found in stored.items()}
    measurements.file().write_text(json.dumps(old), "utf-8")
    assert measurements.bandwidth().value == 8.0


def test_the_bandwidth_of_a_busy_machine_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = iter([3.2, 42.0])
    monkeypatch.setattr(machine, "bandwidth", lambda: next(speeds))
    monkeypatch.setattr(limits, "load_average", lambda: 100.0)
    assert [measurements.bandwidth().value for _ in range(2)] == [3.2, 3.2]
    monkeypatch.setattr(limits, "load_average", lambda: 0.0)
    assert measurements.bandwidth().value == 42.0


def test_a_file_that_cannot_be_read_is_measured_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "bandwidth", lambda: 42.0)
    measurements.file().parent.mkdir(parents=True)
    name = f"{measurements.machine()}: bandwidth of memory".replace('"', "")
    for found in ("1", '{"value": "x"}', '{"value": 1, "how": 2, "day": 3}'):
        for text in ("no JSON", "[]", f'{{"{name}": {found}}}'):
            measurements.file().write_text(text)
            assert measurements.bandwidth().value == 42.0
            assert measurements.recall("bandwidth of memory") is not None
