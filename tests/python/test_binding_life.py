# SPDX-License-Identifier: Apache-2.0
"""Life and end of the extension module's objects: closing, dropping, forking, exiting, leaking."""

import array
import errno
import gc
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import kvcellar
from binding import Pages, Rig, fault, indices, mem, rig, run_python


def closed_calls(it: Rig, transfer: kvcellar.Transfer) -> list[Callable[[], Any]]:
    """Every method that needs an open store."""
    store, space, pool = it.store, it.namespace, it.pool
    return [
        lambda: store.namespace("x"), lambda: store.run([]), lambda: store.run([transfer]),
        lambda: store.start([]), lambda: store.start([transfer]),
        lambda: store.register_memory(4096, 4096), store.stats, store.stats_text, store.describe,
        store.metrics, store.usage, store.usage_namespaces, lambda: store.pin("x"),
        lambda: store.clean(to_bytes=0), store.list, store.verify, lambda: store.clear("x"),
        lambda: store.object_stat("r", "p"), store.selftest,
        lambda: space.id, lambda: space.pool("x", marker=True), space.usage, space.clear,
        lambda: space.put("p", "k", b""), lambda: space.get("p", "k"),
        lambda: space.get_into("p", "k", bytearray(1)), lambda: space.exists("p", "k"),
        lambda: space.remove("p", "k"), lambda: space.put_many("p", ["k"], [b""]),
        lambda: space.get_many("p", [], []), lambda: space.exists_many("p", ["k"]),
        lambda: space.where("p", "k"),
        lambda: pool.exists(["k"]), lambda: pool.get(["k"], [0]), lambda: pool.set([], []),
        lambda: pool.remove(["k"]), pool.info, lambda: pool.where("k"),
    ]


def test_a_closed_store_refuses_everything() -> None:
    it = Rig()
    transfer = kvcellar.Transfer("get", it.pool, ["k"], [0])
    for _ in range(2):
        it.store.close()
        assert (it.store.closed, it.namespace.closed, it.pool.closed) == (True, True, True)
        for call in closed_calls(it, transfer):
            with pytest.raises(ValueError, match="closed") as caught:
                call()
            assert isinstance(caught.value, kvcellar.Error)
            assert caught.value.errno == errno.EBADF
    for child in (it.pool, it.namespace):
        child.close()
    assert repr(it.store) == "<kvcellar.Store, closed>"
    assert repr(it.namespace) == "<kvcellar.Namespace, closed>"
    assert repr(it.pool) == "<kvcellar.Pool 'kv', closed>"
    assert (it.pool.name, it.pool.part_count, len(transfer)) == ("kv", 1, 1)


def test_a_closed_namespace_closes_its_pools_only() -> None:
    with rig() as it:
        other = it.store.namespace("other")
        it.namespace.close()
        assert (it.namespace.closed, it.pool.closed) == (True, True)
        assert (it.store.closed, other.closed) == (False, False)
        with pytest.raises(ValueError, match="the pool is closed"):
            it.pool.exists(["a"])
        with pytest.raises(ValueError, match="the namespace is closed"):
            it.namespace.pool("kv", marker=True)
        assert it.pages.pool(other).set(["a"], [0]).ok == [True]


def test_every_handle_is_a_context_manager() -> None:
    with kvcellar.Store(mem()) as store, store.namespace() as space:
        with space.pool("m", marker=True) as pool:
            assert pool.set(["a"]).ok == [True]
        with pytest.raises(KeyError), store.register_memory(Pages().address, 512) as region:
            raise KeyError
        assert (pool.closed, region.closed, space.closed) == (True, True, False)
    assert (store.closed, space.closed) == (True, True)


def test_children_keep_their_parents_alive() -> None:
    it = Rig()
    pool = it.pool
    marks = [weakref.ref(it.store), weakref.ref(it.namespace)]
    del it
    gc.collect()
    assert pool.set(["a"], [0]).ok == [True]
    assert all(mark() is not None for mark in marks)
    last = weakref.ref(pool)
    del pool
    gc.collect()
    assert [mark() for mark in (*marks, last)] == [None] * 3


def test_a_transfer_and_a_batch_keep_the_pool() -> None:
    it = Rig()
    batch = it.store.start([kvcellar.Transfer("set", it.pool, ["a"], [0])])
    mark = weakref.ref(it.pool)
    del it
    gc.collect()
    assert batch.wait()[0].ok == [True]
    assert mark() is not None
    del batch
    gc.collect()
    assert mark() is None


def test_cycles_through_the_owner_are_collected() -> None:
    class Owner:
        pool: Any = None
        transfer: Any = None

    it = Rig()
    owner = Owner()
    owner.pool = it.namespace.pool("cycle", [it.pages.part()], page_count=8, owner=owner)
    owner.transfer = kvcellar.Transfer("set", owner.pool, ["a"], [0])
    marks = [weakref.ref(owner), weakref.ref(owner.pool), weakref.ref(it.store)]
    gc.collect()
    assert all(mark() is not None for mark in marks)
    del owner, it
    gc.collect()
    assert [mark() for mark in marks] == [None] * 3


def test_a_dropped_store_is_closed() -> None:
    """The same folder opens again at once, and what was stored is there."""
    config = mem()
    for round_ in range(20):
        it = Rig(config)
        assert it.pool.set(["a"], [0]).causes == ["none" if round_ == 0 else "existed"]
        del it


DYING = {
    "a pool": "it.pages.pool(it.namespace, 'other')",
    "a namespace": "it.store.namespace('other')",
    "a region": "it.store.register_memory(it.pages.address, 512)",
    "a batch": "it.store.start([kvcellar.Transfer('get', it.pool, ['a'], [1])])",
}


@pytest.mark.parametrize("parent", ["store", "namespace"])
@pytest.mark.parametrize("what", DYING)
def test_the_end_of_a_handle_may_close_what_it_belongs_to(what: str, parent: str) -> None:
    done = run_python(f"""
import weakref, kvcellar
from binding import Rig, fault
it = Rig(fault("read stall_ms=200 name=*.kv.*"))
it.pool.set(["a"], [0])
parent = it.{parent}
dying = {DYING[what]}
weakref.finalize(dying, parent.close)
del dying
print(parent.closed)
it.store.close()
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def collect_until(gone: Callable[[], bool]) -> None:
    """Collects garbage, and what could not be closed when it was dropped."""
    deadline = time.monotonic() + 60
    while not gone() and time.monotonic() < deadline:
        kvcellar.Store(mem()).close()
        gc.collect()
        time.sleep(0.01)
    assert gone()


def test_a_batch_in_flight_is_not_collected_with_its_memory() -> None:
    class Owner:
        pass

    with rig(fault("write stall_ms=700 name=*.kv.*")) as it:
        owner: Any = Owner()
        owner.pages = Pages()
        content = owner.pages[3]
        owner.pool = it.namespace.pool("kv", [owner.pages.part()], page_count=8, owner=owner)
        owner.batch = it.store.start([kvcellar.Transfer("set", owner.pool, ["a"], [3])])
        mark = weakref.ref(owner)
        del owner
        for _ in range(3):
            gc.collect()
        assert mark() is not None
        collect_until(lambda: mark() is None)
        # Nor was it cancelled, and nobody asked for it.
        assert it.pool.get(["a"], [0]).ok == [True]
        assert it.pages[0] == content


def test_a_batch_that_died_in_the_log_callback_keeps_nothing() -> None:
    it = Rig()
    box = [it.store.start([kvcellar.Transfer("set", it.pool, ["a"], [0])])]
    box[0].wait()
    kvcellar.set_log(lambda level, text: box.clear(), 3)
    try:
        kvcellar.Store(mem()).close()
    finally:
        kvcellar.set_log(None)
    assert not box
    marks = [weakref.ref(each) for each in (it.store, it.namespace, it.pool, it.pages)]
    del it
    collect_until(lambda: [mark() for mark in marks] == [None] * 4)


def test_a_batch_that_could_not_be_stopped_keeps_nothing_once_it_ends() -> None:
    it = Rig(fault("write stall_ms=2500 name=*.kv.*"))
    batch = it.store.start([kvcellar.Transfer("set", it.pool, ["a"], [0], timeout_ms=9000)])
    marks = [weakref.ref(each) for each in (it.store, it.namespace, it.pool, it.pages)]
    time.sleep(0.2)
    del batch, it
    assert None not in [mark() for mark in marks]
    collect_until(lambda: [mark() for mark in marks] == [None] * 4)


def test_nobody_sees_half_an_object() -> None:
    """gc.get_objects() has every object from when it is made, also while its arguments are read."""
    done = run_python("""
import gc, kvcellar
from binding import rig
seen = set()
def look():
    for each in gc.get_objects():
        if type(each).__module__.partition(".")[0] != "kvcellar" or isinstance(each, type):
            continue
        seen.add(type(each).__name__)
        for use in (repr, len, lambda b: b.done(), lambda b: b.wait(0), lambda b: b.fileno()):
            try:
                use(each)
            except (TypeError, AttributeError, kvcellar.Error):
                pass
class Nosy(list):
    def __iter__(self):
        look()
        yield from list(self[:])
class NosyIndices:
    def __len__(self):
        look()
        return 1
    def __getitem__(self, at):
        look()
        return 0
class NosyName:
    def data_ptr(self):
        look()
        raise AttributeError
with rig() as it:
    transfer = kvcellar.Transfer("set", it.pool, Nosy(["a"]), NosyIndices())
    try:
        kvcellar.Transfer("get", it.pool, ["a"], buffers=[NosyName()])
    except AttributeError:
        pass
    batch = it.store.start(Nosy([transfer]))
    assert batch.wait()[0].ok == [True]
    assert it.store.run(Nosy([transfer]))[0].ok == [True]
    look()
    print(len(seen), "Batch" in seen)
""")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(" True\n")


# ---------------------------------------------------------------- closing under a running call


class Call(threading.Thread):
    """Runs something in another thread; result() has what it returned or raised."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__()
        self.call = call
        self.answer: Any = None
        self.begun = threading.Event()
        self.start()

    def run(self) -> None:
        self.begun.set()
        try:
            self.answer = self.call()
        except BaseException as error:  # noqa: BLE001 - handed to the test's thread
            self.answer = error

    def result(self) -> Any:
        self.join(60)
        assert not self.is_alive()
        return self.answer


def in_flight(it: Rig, key: str = "a", timeout_ms: int = 0) -> Call:
    """A get that the store is at."""
    gets = it.store.stats()["operations"]["get"]["calls"]
    call = Call(lambda: it.pool.get([key], [5], timeout_ms=timeout_ms))
    assert call.begun.wait(60)
    time.sleep(0.1)
    assert it.store.stats()["operations"]["get"]["calls"] == gets
    return call


@pytest.mark.parametrize("what", ["pool", "namespace", "store"])
def test_close_waits_for_calls_in_flight(what: str) -> None:
    with rig(fault("read stall_ms=800 name=*.kv.*")) as it:
        it.pool.set(["a"], [0])
        call = in_flight(it)
        getattr(it, what).close()
        assert getattr(it, what).closed
        assert call.result().ok == [True]
        assert it.pages[5] == it.pages[0]


def test_close_gives_up_after_two_seconds() -> None:
    with rig(fault("read stall_ms=60000 name=*.kv.*")) as it:
        it.pool.set(["a"], [0])
        call = in_flight(it, timeout_ms=4000)
        with pytest.raises(kvcellar.Error, match="stays open: 1 call is still at work") as caught:
            it.store.close()
        assert caught.value.errno == errno.EBUSY
        assert not isinstance(caught.value, ValueError)
        assert not it.store.closed
        assert it.pool.exists(["a"]).ok == [True]
        assert call.result().statuses == ["timeout"]


def test_memory_that_died_while_a_transfer_used_it_does_not_keep_the_store_open() -> None:
    with rig(fault("read stall_ms=2500 name=*.kv.*")) as it:
        it.pool.set(["a"], [0])
        region = it.store.register_memory(4096, 4096)
        call = in_flight(it, timeout_ms=5000)
        del region
        assert it.store.stats()["host_registrations"] == 1
        assert call.result().ok == [True]
        it.store.close()
        assert it.store.closed


def test_memory_in_use_is_waited_for() -> None:
    with rig(fault("read stall_ms=800 name=*.kv.*")) as it:
        it.pool.set(["a"], [0])
        with it.store.register_memory(4096, 4096):
            call = in_flight(it)
        assert it.store.stats()["host_registrations"] == 0
        assert call.result().ok == [True]


def test_while_one_thread_closes_others_are_refused() -> None:
    with rig(fault("read stall_ms=1200 name=*.kv.*")) as it:
        it.pool.set(["a"], [0])
        call = in_flight(it)
        closers = [Call(it.store.close) for _ in range(3)]
        closers += [Call(it.pool.close), Call(it.namespace.close)]
        time.sleep(0.2)
        with pytest.raises(ValueError, match="the (pool|namespace|store) is (being closed|closed)"):
            it.pool.exists(["a"])
        assert call.result().ok == [True]
        assert [closer.result() for closer in closers] == [None] * 5
        assert it.store.closed


# ---------------------------------------------------------------- fork


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_may_not_use_the_handles() -> None:
    with rig() as it:
        it.pool.set(["a"], [0])
        transfer = kvcellar.Transfer("get", it.pool, ["a"], [1])
        batch = it.store.start([transfer])
        batch.wait()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                for call in closed_calls(it, transfer):
                    try:
                        call()
                    except kvcellar.Error as error:
                        assert error.errno == errno.EPERM, error
                        assert "forked" in error.strerror
                    else:
                        raise AssertionError("not refused")
                assert batch.wait()[0].ok == [True]
                it.store.close()
                assert it.pool.closed
                own = Rig()  # a store of its own works
                assert own.pool.set(["a"], [0]).ok == [True]
                own.store.close()
                del it, own, batch, transfer
                gc.collect()
                code = 0
            except BaseException as error:  # noqa: BLE001 - the child must not go on as pytest
                print(repr(error), file=sys.stderr, flush=True)
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert it.pool.get(["a"], [1]).ok == [True]


def run_forking(code: str) -> None:
    """Runs code that sets `child`; a child that hangs is ended by its alarm."""
    done = run_python(f"""
import os, signal, sys, threading, warnings, kvcellar
from binding import Rig, mem
warnings.simplefilter("ignore", DeprecationWarning)
{code}
print(os.waitpid(child, 0)[1])
""")
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


def test_a_child_forked_while_the_log_callback_runs_comes_to_its_end() -> None:
    run_forking("""
entered, release, lines = threading.Event(), threading.Event(), []
def callback(level, text):
    lines.append(text)
    if threading.current_thread() is not threading.main_thread():
        entered.set()
        release.wait()
kvcellar.set_log(callback, 3)
thread = threading.Thread(target=lambda: Rig().store.close())
thread.start()
assert entered.wait(30)
child = os.fork()
if child == 0:
    signal.alarm(20)
    lines.clear()
    Rig().store.close()
    assert lines  # the callback is kept
    own = []
    kvcellar.set_log(lambda level, text: own.append(text), 3)
    lines.clear()
    Rig().store.close()
    assert own and not lines
    sys.exit(0)  # takes the callback away
release.set()
thread.join()
""")


def test_a_child_forked_while_threads_open_stores_opens_its_own() -> None:
    run_forking("""
stopping = False
config = mem()
def open_again_and_again():
    while not stopping:
        Rig(config).store.close()
threads = [threading.Thread(target=open_again_and_again, daemon=True) for _ in range(3)]
for thread in threads:
    thread.start()
for left in reversed(range(100)):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        own = Rig(config)
        assert own.pool.set(["a"], [0]).ok == own.pool.get(["a"], [1]).ok == [True]
        own.store.close()
        os._exit(0)
    if left:
        assert os.waitpid(child, 0)[1] == 0
stopping = True
for thread in threads:
    thread.join()
""")


# ---------------------------------------------------------------- exit

EXITS = {
    "nothing is closed": "",
    "in cycles": "it.me = it; it.pages.it = it",
    "a batch at work": "batch = it.store.start([kvcellar.Transfer('get', it.pool, ['s'], [1])])",
    "a daemon thread in a call":
        "threading.Thread(target=lambda: it.pool.get(['s'], [1]), daemon=True).start();"
        "time.sleep(0.2)",
    "a log callback": "kvcellar.set_log(lambda level, text: None, 3)",
    "a log callback that raises": "kvcellar.set_log(lambda level: None, 3)",
    "threads that log": "kvcellar.set_log(lambda level, text: time.sleep(0.001), 3);"
        "[threading.Thread(target=lambda: [kvcellar.Store(mem()) for _ in iter(int, 1)],"
        " daemon=True).start() for _ in range(3)]; time.sleep(0.1)",
    "atexit": "import atexit; atexit.register(lambda: print(it.pool.exists(['a']).ok))",
    "an exit in the middle": "raise SystemExit",
}


@pytest.mark.parametrize("case", EXITS)
def test_exit(case: str) -> None:
    done = run_python(f"""
import threading, time, kvcellar
from binding import Rig, fault, mem
it = Rig(fault("read stall_ms=700 name=s.kv.*"))
it.pool.set(["a", "s"], [0, 1])
print("ready", flush=True)
{EXITS[case]}
""")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("ready")
    assert "Fatal" not in done.stderr and "Segmentation" not in done.stderr


def test_the_log_callback_is_removed_before_the_end() -> None:
    done = run_python("""
import atexit, kvcellar
from binding import mem
lines = []
def last():
    before = len(lines)
    kvcellar.Store(mem()).namespace("x")
    print(before > 0, len(lines) - before)
atexit.register(last)
kvcellar.set_log(lambda level, text: lines.append(text), 3)
kvcellar.Store(mem()).namespace("x")
""")
    assert done.stdout == "True 0\n", done.stderr


def test_the_module_may_be_made_twice() -> None:
    """Another module object has types of its own; objects of one are not the other's."""
    done = run_python("""
import sys, gc, kvcellar
from binding import mem
first = kvcellar.Store(mem())
first_error = kvcellar.Error
for name in [name for name in sys.modules if name.startswith("kvcellar")]:
    del sys.modules[name]
import kvcellar as again
assert again.Store is not type(first)
second = again.Store(mem())
space = second.namespace()
pool = first.namespace().pool("m", marker=True)
for call in (lambda: again.Transfer("get", pool, []), lambda: type(first).run(second, [])):
    try:
        call()
    except TypeError:
        pass
    else:
        raise AssertionError
del kvcellar, first, pool
gc.collect()
second.close()
print("ok")
""")
    assert done.stdout == "ok\n", done.stderr


# ---------------------------------------------------------------- references and memory


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Bad:
    def data_ptr(self) -> int:
        raise RuntimeError


def every_call(it: Rig, keys: list[Any], numbers: Any, memory: bytearray) -> None:
    """Good and bad calls of everything that holds something while it works."""
    pool, space, store = it.pool, it.namespace, it.store
    pool.set(keys, numbers, parent=keys[0])
    result = pool.get(keys, numbers)
    _ = (result.ok, result.statuses, result.causes, result.errors, result.present)
    pool.exists(keys)
    space.put("side", keys[0], memory)
    space.get("side", keys[0])
    space.get_into("side", keys[0], memory)
    space.put_many("side", keys, [memory] * len(keys))
    space.get_many("side", keys, [memory] * len(keys))
    space.exists_many("side", keys)
    space.where("side", keys[0])
    pool.where(keys[0])
    transfer = kvcellar.Transfer("get", pool, keys, numbers, parent=keys[1])
    store.run([transfer, transfer])
    store.start([transfer]).wait()
    space.pool("m", [{"piece_bytes": 8, "piece_count": 1, "name": "k"}], owner=memory)
    kvcellar.policy_restorable([(result.present, "all_pages", 1)], len(keys))
    for call in (lambda: pool.set([*keys, None], numbers), lambda: pool.set(keys, numbers[:1]),
                 lambda: pool.set(keys, numbers, depth=-1), lambda: pool.set(keys, Bad()),
                 lambda: pool.set(keys, numbers, parent=1), lambda: pool.get(keys, [1, 2, None]),
                 lambda: space.put_many("side", keys, [memory]),
                 lambda: space.get_many("side", keys[:2], [memory, b"1"]),
                 lambda: kvcellar.Transfer("get", pool, keys, memory),
                 lambda: kvcellar.Transfer("get", pool, keys, buffers=[memory, Bad()]),
                 lambda: store.run([transfer, 5]), lambda: store.namespace("x", page_tokens=0),
                 lambda: space.pool("m", [{"name": "k", "piece_bases": [1, 2], "x": 1}]),
                 lambda: kvcellar.Store({"nosuchkey": 1}),
                 lambda: kvcellar.policy_prefix([(b"1", "all_pages", 1), (b"", "x", 1)], 1)):
        with pytest.raises((kvcellar.Error, TypeError, RuntimeError)):
            call()


def test_references_come_back() -> None:
    with rig() as it:
        keys: list[Any] = ["key-" + str(i) for i in range(4)] + [b"bytes-key"]
        numbers = array.array("q", range(5))
        memory = bytearray(100)
        held = [*keys, keys, numbers, memory, it.pool, it.namespace, it.store, kvcellar.Error]
        every_call(it, keys, numbers, memory)
        gc.collect()
        before = [sys.getrefcount(each) for each in held]
        for _ in range(50):
            every_call(it, keys, numbers, memory)
        gc.collect()
        assert [sys.getrefcount(each) for each in held] == before
        memory.append(1)
        numbers.append(1)


def test_memory_does_not_grow() -> None:
    with rig() as it:
        keys = ["key-" + str(i) for i in range(8)]
        numbers = indices(*range(8))
        memory = bytearray(100)

        def calls(count: int) -> None:
            for _ in range(count):
                it.pool.set(keys, numbers)
                it.pool.get(keys, numbers).ok
                with pytest.raises(kvcellar.ConfigError):
                    it.pool.get(keys, numbers, index_stride=9)
                it.store.run([kvcellar.Transfer("exists", it.pool, keys)])
                it.namespace.put_many("side", keys[:2], [memory] * 2)
                it.namespace.get("side", keys[0])

        calls(1000)
        gc.collect()
        before = resident_bytes()
        calls(10000)
        gc.collect()
        assert resident_bytes() - before < 4 << 20


def test_opening_and_closing_does_not_leak() -> None:
    config = mem()

    def rounds(count: int) -> None:
        for _ in range(count):
            with rig(config) as it:
                it.pool.set(["a"], [0])
                it.store.start([kvcellar.Transfer("get", it.pool, ["a"], [1])]).wait()
                it.store.stats()
            with pytest.raises(kvcellar.ConfigError):
                kvcellar.Store({"nosuchkey": 1})

    rounds(50)
    gc.collect()
    before, files = resident_bytes(), len(os.listdir("/proc/self/fd"))
    rounds(300)
    gc.collect()
    assert resident_bytes() - before < 4 << 20
    assert len(os.listdir("/proc/self/fd")) == files
