"""A lock knows which thread holds it."""

from concurrent.futures import ThreadPoolExecutor

from nimble_fx.devices.lock import Lock, NoLock


def is_held_by_another_thread(lock: Lock) -> bool:
    with ThreadPoolExecutor(1) as other:
        return other.submit(lambda: lock.is_held_here).result()


def test_a_lock_is_held_by_the_thread_that_took_it_until_it_was_given_back_as_often() -> None:
    lock = Lock()
    assert not lock.is_held_here
    with lock:
        with lock:
            assert lock.is_held_here
        assert lock.is_held_here
        assert not is_held_by_another_thread(lock)
    assert not lock.is_held_here


def test_only_one_thread_holds_a_lock_and_any_number_hold_none() -> None:
    entered: list[int] = []

    def enter(lock: Lock, i: int) -> None:
        with lock:
            entered.append(i)

    lock, none = Lock(), NoLock()
    with ThreadPoolExecutor(1) as other:
        with lock, none:
            assert not none.is_held_here
            other.submit(enter, none, 1).result()
            waiting = other.submit(enter, lock, 2)
            assert entered == [1]
        waiting.result()
    assert entered == [1, 2]
