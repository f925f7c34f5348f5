"""Paths wait a little, are taken once, and nobody waits for ever."""

import threading
import time

from localdflash.code.context.changes import PAUSE, Changes


def test_a_path_is_taken_once_and_not_before_its_time() -> None:
    changes = Changes()
    began = time.monotonic()
    for _ in range(5):
        changes.put("a")
    assert changes.take() == [("a", False)]
    assert time.monotonic() - began >= PAUSE
    assert not changes.settled(0)
    threading.Timer(0.01, changes.close).start()
    assert changes.take() == []


def test_a_path_that_never_rests_is_still_taken() -> None:
    changes = Changes()
    taken: list[list[tuple[str, bool]]] = []
    thread = threading.Thread(target=lambda: taken.append(changes.take()))
    thread.start()
    end = time.monotonic() + 20 * PAUSE
    while not taken and time.monotonic() < end:
        changes.put("a")
        time.sleep(PAUSE / 20)
    changes.close()
    thread.join()
    assert taken == [[("a", False)]]


def test_what_is_urgent_does_not_wait() -> None:
    changes = Changes()
    changes.put("a", pause=60)
    changes.put("b", pause=60)
    changes.put("b", pause=0)
    assert changes.take() == [("b", False)]
    assert not changes.settled(0)


def test_the_last_word_on_whether_it_is_gone() -> None:
    changes = Changes()
    for gone in (True, False):
        changes.put("a", gone=gone, pause=0)
        changes.put("b", gone=not gone, pause=0)
    assert changes.take() == [("a", False), ("b", True)]


def test_settled_when_the_taker_comes_back() -> None:
    changes = Changes()
    changes.start()
    assert not changes.settled(0)
    changes.put("a", pause=0)
    changes.take()
    assert not changes.settled(0)
    thread = threading.Thread(target=changes.take)
    thread.start()
    assert changes.settled(5)
    changes.close()
    thread.join()
    assert changes.settled(0)
