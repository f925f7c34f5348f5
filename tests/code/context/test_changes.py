import threading
import time

from localdflash.code.context.changes import PAUSE_SECONDS, ChangeQueue


def test_a_path_is_taken_once_after_the_pause() -> None:
    changes, began = ChangeQueue(), time.monotonic()
    for _ in range(5):
        changes.put("a")
    assert changes.take() == [("a", False)]
    assert time.monotonic() - began >= PAUSE_SECONDS
    threading.Timer(0.01, changes.close).start()
    assert changes.take() == []


def test_a_path_that_keeps_changing_is_still_taken() -> None:
    changes, taken = ChangeQueue(), list[object]()
    thread = threading.Thread(target=lambda: taken.append(changes.take()))
    thread.start()
    end = time.monotonic() + 20 * PAUSE_SECONDS
    while not taken and time.monotonic() < end:
        changes.put("a")
        time.sleep(PAUSE_SECONDS / 20)
    changes.close()
    thread.join()
    assert taken == [[("a", False)]]


def test_the_shortest_pause_and_the_latest_state_count() -> None:
    changes = ChangeQueue()
    changes.put("a", pause=60)
    for gone in (True, False):
        changes.put("b", gone=gone, pause=60)
        changes.put("c", gone=not gone, pause=0)
    changes.put("b", pause=0)
    assert changes.take() == [("b", False), ("c", True)]
    assert not changes.settled(0)


def test_settled_once_the_queue_is_empty_and_its_thread_waits() -> None:
    changes = ChangeQueue()
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
