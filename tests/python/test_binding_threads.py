# SPDX-License-Identifier: Apache-2.0
"""Threads, the GIL and the log callback of the extension module."""

import contextlib
import errno
import gc
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import kvcellar
from binding import Pages, Rig, fault, indices, mem, rig


def in_threads(count: int, work: Callable[[int], Any]) -> None:
    """Runs work(number) in that many threads; passes on the first exception."""
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - handed to the test's thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


# ---------------------------------------------------------------- the GIL


class Other:
    """A thread that, each time it is let go, counts once and waits again.

    With the longest switch interval it gets the GIL only when that is released.
    """

    def __init__(self) -> None:
        self.count = 0
        self.go = threading.Semaphore(0)
        self.waits = threading.Event()
        self.ends = False
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        while True:
            self.waits.set()
            self.go.acquire()
            self.waits.clear()
            if self.ends:
                return
            self.count += 1

    def counted_during(self, call: Callable[[], Any]) -> int:
        assert self.waits.wait(60)
        time.sleep(0.01)  # it has come to acquire()
        before = self.count
        self.go.release()
        call()
        counted = self.count - before
        while self.count == before:
            time.sleep(0.01)  # gives it the GIL
        return counted


@pytest.fixture
def other() -> Iterator[Other]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    it = Other()
    yield it
    sys.setswitchinterval(interval)
    it.ends = True
    it.go.release()
    it.thread.join(60)


def test_other_threads_run_while_storage_works(other: Other) -> None:
    rules = "; ".join(f"{op} delay_ms=50 name=*.{pool}.*" for pool in ("kv", "side")
                      for op in ("read", "write", "stat", "remove"))
    with rig(fault(rules)) as it:
        transfer = kvcellar.Transfer("get", it.pool, ["a"], [0])
        calls = {
            "set": lambda: it.pool.set(["a"], [0]),
            "get": lambda: it.pool.get(["a"], [1]),
            "exists": lambda: it.pool.exists(["a"]),
            "run": lambda: it.store.run([transfer]),
            "wait": lambda: it.store.start([transfer]).wait(),
            "remove": lambda: it.pool.remove(["a"]),
            "put_many": lambda: it.namespace.put_many("side", ["a"], [b"x"]),
            "get_many": lambda: it.namespace.get_many("side", ["a"], [bytearray(1)]),
            "exists_many": lambda: it.namespace.exists_many("side", ["a"]),
            "put": lambda: it.namespace.put("side", "b", b"x"),
            "get_into": lambda: it.namespace.get_into("side", "b", bytearray(1)),
        }
        assert {name: other.counted_during(call) for name, call in calls.items()} == dict.fromkeys(
            calls, 1)


def test_calls_that_cannot_do_io_keep_the_gil(other: Other) -> None:
    with rig(is_mla=True, tp_size=2, tp_rank=1) as it:
        keys = [f"key-{i}" for i in range(8)]
        transfer = kvcellar.Transfer("set", it.pool, keys, range(8))
        calls = {
            "a set by a rank that is not the writer": lambda: it.pool.set(keys, range(8)),
            "a run of such sets": lambda: it.store.run([transfer, transfer]),
            "an empty get": lambda: it.pool.get([], []),
            "an empty run": lambda: it.store.run([]),
            "empty put_many": lambda: it.namespace.put_many("side", [], []),
            "info": it.pool.info,
            "a refused get": lambda: pytest.raises(kvcellar.ConfigError, it.pool.get, ["a"], []),
        }
        for name, call in calls.items():
            assert other.counted_during(lambda: [call() for _ in range(100)]) == 0, name


def test_exists_from_the_index_keeps_the_gil(other: Other, folder: str) -> None:
    """On a packed root, also for keys that are absent and before anything is stored. Releasing the
    GIL could cost the switch interval."""
    config = {"storage_dirs": [folder], "storage_layout": "packed", "capacity": "64MiB"}
    keys = [f"key-{i}" for i in range(128)]
    with rig(config) as it:
        transfer = kvcellar.Transfer("exists", it.pool, keys, stop_at_miss=True)

        def look() -> None:
            for _ in range(100):
                it.pool.exists(keys)
                it.pool.exists(keys, stop_at_miss=True)
                it.store.run([transfer, transfer])

        assert other.counted_during(look) == 0
        assert it.pool.set(keys[:8], range(8)).ok_count == 8
        assert it.pool.exists(keys).ok == [True] * 8 + [False] * 120
        assert other.counted_during(look) == 0


def test_exists_finds_what_another_store_has_made(folder: str) -> None:
    """What this store has not mapped yet is mapped by the first call that needs it."""
    config = {"storage_dirs": [folder], "storage_layout": "packed", "capacity": "64MiB"}
    with rig(config) as one, rig(config) as two:
        assert two.pool.exists(["a", "b"]).statuses == ["miss", "miss"]
        assert one.pool.set(["a"], [0])
        assert two.pool.exists(["a", "b"]).statuses == ["ok", "miss"]
        assert one.pool.remove(["a"])
        assert two.pool.exists(["a", "b"]).statuses == ["miss", "miss"]


def test_a_list_of_keys_may_change_meanwhile() -> None:
    with rig(fault("read delay_ms=100 name=*.kv.*")) as it:
        keys = [f"{i:064x}" for i in range(8)]
        it.pool.set(keys, range(8))
        wanted, targets = list(keys), [bytearray(512) for _ in keys]
        loose = it.namespace.pool("kv", [{"piece_bytes": 512, "piece_count": 1}])
        results = []
        thread = threading.Thread(
            target=lambda: results.append(loose.get(wanted, buffers=targets)))
        thread.start()
        time.sleep(0.03)
        wanted.clear()
        held = targets.copy()
        targets.clear()
        with contextlib.suppress(BufferError):  # once it is done, it may grow
            held[0].extend(b"more")
        thread.join(60)
        assert results[0].ok == [True] * 8
        assert [target[0] for target in held] == list(range(1, 9))


# ---------------------------------------------------------------- many threads


def test_many_threads_on_one_pool() -> None:
    count, rounds = 8, 150
    with rig(pages=count * 2) as it:
        def work(number: int) -> None:
            chance = random.Random(number)
            mine, other = number * 2, number * 2 + 1
            for round_ in range(rounds):
                key = f"{number}-{chance.randrange(10)}"
                it.pages.fill(mine, number + 1)
                assert it.pool.set([key, "all"], [mine, mine]).ok == [True, True]
                assert it.pool.get([key], [other]).ok == [True]
                assert it.pages[other] == it.pages[mine], (number, round_)
                assert it.pool.exists([key, "none"]).ok == [True, False]
                if round_ % 10 == 0:
                    assert it.namespace.put_many("s", [key], [b"%d" % number]) == [0]
                    assert it.namespace.get("s", key) == b"%d" % number
                    assert it.store.start(
                        [kvcellar.Transfer("exists", it.pool, [key])]).wait(60)[0].ok == [True]
                    it.store.stats()
        in_threads(count, work)


def test_threads_while_the_store_is_closed_under_them() -> None:
    for seed in range(15):
        it = Rig()
        closed = threading.Event()
        chance = random.Random(seed)

        def work(number: int, it: Rig = it, closed: threading.Event = closed) -> None:
            page = number % 8
            try:
                while True:
                    assert it.pool.set([f"{number}"], [page]).ok == [True]
                    assert it.pool.get([f"{number}"], [page]).ok == [True]
                    it.store.namespace("x").pool("m", marker=True).set(["k"])
                    it.store.start([kvcellar.Transfer("exists", it.pool, ["a"])]).wait()
                    it.namespace.put("s", f"{number}", b"data")
                    with it.store.register_memory(4096 * (number + 1), 4096):
                        pass
            except ValueError as error:
                assert error.errno == errno.EBADF  # type: ignore[attr-defined]
                closed.wait(60)

        def close(number: int, it: Rig = it, closed: threading.Event = closed,
                  chance: random.Random = chance) -> None:
            time.sleep(chance.random() * 0.05)
            order = [it.pool, it.namespace, it.store, it.store]
            for handle in order[chance.randrange(4):] + [it.store]:
                while True:
                    try:
                        handle.close()
                        break
                    except kvcellar.Error as error:
                        assert error.errno == errno.EBUSY
            closed.set()

        in_threads(8, lambda number: work(number) if number < 6 else close(number))
        assert it.store.closed


def test_threads_open_and_drop_their_own() -> None:
    config = mem()

    def work(number: int) -> None:
        for _ in range(30):
            it = Rig(config)
            assert it.pool.set([f"{number}"], [0]).ok == [True]
            batch = it.store.start([kvcellar.Transfer("get", it.pool, [f"{number}"], [1])])
            if number % 2:
                batch.wait()
            del batch
            if number % 3 == 0:
                it.store.close()
    in_threads(6, work)
    gc.collect()


# ---------------------------------------------------------------- log


@pytest.fixture(autouse=True)
def no_log() -> Iterator[None]:
    yield
    kvcellar.set_log(None)


def make_lines() -> None:
    """Has the library log at several levels."""
    with kvcellar.Store(mem()) as store:
        pool = Pages().pool(store.namespace("unset"))
        pool.set(["a"], [0])


def test_log_lines() -> None:
    lines: list[tuple[int, str]] = []
    kvcellar.set_log(lambda level, text: lines.append((level, text)), 3)
    make_lines()
    assert {level for level, _ in lines} >= {1, 3}
    assert any("identity is unset" in text for _, text in lines)
    assert all(isinstance(text, str) and text and "\n" not in text for _, text in lines)
    only: list[int] = []
    kvcellar.set_log(lambda level, text: only.append(level), level=1)
    before = len(lines)
    make_lines()
    assert set(only) == {1}
    kvcellar.set_log(None)
    seen = len(only)
    make_lines()
    assert (len(lines), len(only)) == (before, seen)


def test_what_the_log_callback_raises_is_dropped() -> None:
    unraisable: list[Any] = []
    before, sys.unraisablehook = sys.unraisablehook, unraisable.append
    try:
        kvcellar.set_log(lambda level, text: 1 / 0, 3)
        make_lines()
    finally:
        sys.unraisablehook = before
    assert {each.exc_type for each in unraisable} == {ZeroDivisionError}


def test_a_callback_does_not_disturb_the_error_of_the_call() -> None:
    """A call that fails and logs on its way: the callback runs, the error is the call's own."""
    seen: list[str] = []

    def callback(level: int, text: str) -> None:
        seen.append(text)
        with contextlib.suppress(ZeroDivisionError):
            1 / 0

    kvcellar.set_log(callback, 3)
    with pytest.raises(kvcellar.Error, match="obj") as caught:
        kvcellar.Store({"plugin": {"obj": {"active": True, "bucket": "b"}}})
    assert caught.value.errno == errno.ENODEV
    assert seen


def test_the_log_callback_may_not_call_the_library() -> None:
    with rig() as it:
        errors: list[int | None] = []

        def callback(level: int, text: str) -> None:
            for call in (lambda: it.pool.exists(["a"]), it.store.stats, it.store.close,
                         lambda: kvcellar.Store(mem()), kvcellar.config_check,
                         lambda: kvcellar.set_log(None), it.pool.close,
                         lambda: it.store.start([])):
                try:
                    call()
                    errors.append(None)
                except kvcellar.Error as error:
                    errors.append(error.errno)

        kvcellar.set_log(callback, 3)
        make_lines()
        assert set(errors) == {errno.EDEADLK}
        kvcellar.set_log(None)
        assert it.pool.exists(["a"]).ok == [False]


def test_what_dies_in_the_log_callback_is_closed_later() -> None:
    dying: list[Any] = []
    threads: list[int] = []

    def callback(level: int, text: str) -> None:
        before = len(os.listdir("/proc/self/task"))
        if dying:
            dying.clear()
            threads.append(len(os.listdir("/proc/self/task")) - before)

    config = mem()
    it = Rig(config)
    it.pool.set(["a"], [0])
    dying.extend([it.store.start([kvcellar.Transfer("get", it.pool, ["a"], [1])]), it])
    del it
    kvcellar.set_log(callback, 3)
    make_lines()
    kvcellar.set_log(None)
    assert (dying, threads) == ([], [0])  # the store's own threads went on
    with rig(config) as after:
        assert after.pool.exists(["a"]).ok == [True]


def test_logging_from_many_threads_while_the_callback_changes() -> None:
    seen = [0, 0]

    def work(number: int) -> None:
        for round_ in range(40):
            if number == 0:
                kvcellar.set_log(lambda level, text: seen.__setitem__(0, seen[0] + 1), 3)
            elif number == 1 and round_ % 3 == 0:
                kvcellar.set_log(None)
            else:
                make_lines()
    in_threads(6, work)


@pytest.mark.parametrize(("arguments", "error", "text"), [
    ((5,), TypeError, "callback: a callable or None expected, not int"),
    ((print, 4), kvcellar.ConfigError, "level = 4: not in 0 to 3"),
    ((print, -1), kvcellar.ConfigError, "level = -1"),
    ((), TypeError, "missing required argument 'callback'"),
])
def test_wrong_log(arguments: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        kvcellar.set_log(*arguments)


def test_store_with_an_io_thread_of_its_own_logs() -> None:
    lines: list[str] = []
    kvcellar.set_log(lambda level, text: lines.append(text), 3)
    with rig(fault("read error=EIO name=*.kv.*")) as it:
        it.pool.set(["a"], indices(0))
        result, = it.store.start([kvcellar.Transfer("get", it.pool, ["a"], [1])]).wait(60)
        assert result.statuses == ["error"]
        assert (result.causes, result.errors) == (["io"], [errno.EIO])
