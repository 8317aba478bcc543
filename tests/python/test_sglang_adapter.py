# SPDX-License-Identifier: Apache-2.0
"""KvCellarStorage without SGLang's pools: calls, errors, closing, tensors, names. Fakes stand for
host pools, so that nothing here needs torch; test_sglang_adapter_pools.py has the real ones."""

import ctypes
import logging
import mmap
import os
import subprocess
import sys
import threading
from array import array

import pytest
from sglang_fakes import (
    FakeAnchor,
    FakeConfig,
    FakeExtraInfo,
    FakePool,
    FakeTensor,
    FakeTransfer,
    keys_of,
    page_data,
)

import kvcellar
from kvcellar.sglang import KvCellarStorage, handles, identity, pools, registry
from kvcellar.sglang import calls as calls_module
from kvcellar.sglang.calls import Calls, Reports, start_logging
from kvcellar.sglang.handles import Deadline


@pytest.fixture(params=("packed", "files"))
def options(request, tmp_path):
    """extra_config of a store in a folder of this test, in either layout."""
    return {"storage_dirs": [str(tmp_path / "root")], "plugin": {"posix": {"active": True}},
            "storage_layout": request.param, "capacity": "64MiB"}


@pytest.fixture
def make(options, tmp_path):
    """make(pool, extra={}, **fields of the storage config): a registered storage."""
    (tmp_path / "root").mkdir()
    made = []

    def build(pool=None, extra=None, **fields):
        config = options | (extra or {})
        if config.get("naming") == "nixl":
            config["storage_layout"] = "files"
        storage = KvCellarStorage(FakeConfig(extra_config=config, **fields), {})
        made.append(storage)
        if pool is not None:
            storage.register_mem_pool_host(pool)
        return storage

    yield build
    for storage in made:
        storage.close()


def fill(pool, pages, seed=0):
    for page in pages:
        pool.write(page, page_data(seed + page, pool.page_bytes))


def files_of(tmp_path):
    return [p for p in (tmp_path / "root").rglob("*")
            if p.is_file() and ".kvcellar" not in p.parts and p.name != "namespace.json"]


# ---------------------------------------------------------------- import


def test_package_imports_without_sglang_and_torch():
    """Importing the package loads neither; the class is found by the name SGLang asks for."""
    code = (
        "import sys, kvcellar.sglang as m\n"
        "assert 'torch' not in sys.modules and 'sglang' not in sys.modules\n"
        "assert 'kvcellar.sglang.storage' not in sys.modules\n"
        "class No:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('torch', 'sglang'):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, No())\n"
        "cls = getattr(m, 'KvCellarStorage')\n"
        "assert 'torch' not in sys.modules\n"
        "assert not cls.__abstractmethods__\n"
        "try:\n"
        "    m.Other\n"
        "except AttributeError:\n"
        "    print('fine')\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.stdout == "fine\n", ran.stderr


# ---------------------------------------------------------------- v1


def test_pages_come_back(make):
    pool = FakePool()
    storage = make(pool)
    fill(pool, range(8))
    want = [pool.read(page) for page in range(8)]
    keys = keys_of(8)
    assert storage.batch_exists(keys) == 0
    assert storage.batch_set_v1(keys, pool.indices(list(range(8)))) == [True] * 8
    assert storage.batch_exists(keys + ["absent"]) == 8
    assert storage.batch_exists(["absent", *keys]) == 0
    got = storage.batch_get_v1(keys + ["absent"], pool.indices(list(range(7, -1, -1)) + [15]))
    assert got == [True] * 8 + [False]
    assert [pool.read(page) for page in range(7, -1, -1)] == want


def test_a_second_storage_finds_them(make):
    """As after a restart: nothing is kept but what is stored."""
    pool = FakePool()
    first = make(pool)
    fill(pool, [3])
    want = pool.read(3)
    assert first.batch_set_v1(["key"], pool.indices([3])) == [True]
    first.close()
    other = FakePool()
    second = make(other)
    assert second.batch_get_v1(["key"], other.indices([9])) == [True]
    assert other.read(9) == want


def test_no_calls_are_empty_results(make):
    pool = FakePool()
    storage = make(pool)
    assert storage.batch_set_v1([], pool.indices([])) == []
    assert storage.batch_get_v1([], pool.indices([])) == []
    assert storage.batch_exists([]) == 0
    assert storage.batch_get_v2([]) == {}
    assert storage.batch_set_v2([FakeTransfer("swa", [], None)]) == {"swa": []}
    result = storage.batch_exists_v2([], [])
    assert (result.kv_hit_pages, result.restorable_prefix_pages) == (0, [])


@pytest.mark.parametrize("indices", [None, [], [0, 1, 2], list(range(9)), list(range(1, 9))])
def test_wrong_indices_fail_the_call_only(make, indices, caplog):
    pool = FakePool(page_size=4)
    storage = make(pool)
    given = None if indices is None else array("q", indices)
    assert storage.batch_set_v1(keys_of(2), given) == [False] * 2
    assert storage.batch_get_v1(keys_of(2), given) == [False] * 2
    fill(pool, [0, 1])
    assert storage.batch_set_v1(keys_of(2), pool.indices([0, 1])) == [True] * 2


def test_an_index_outside_of_the_pool_fails_its_page(make):
    pool = FakePool(pages=4)
    storage = make(pool)
    inside = pool.indices([1])
    outside = array("q", [4 * 4 + i for i in range(4)])
    assert storage.batch_set_v1(["a", "b"], inside + outside) == [True, False]
    assert storage.batch_exists(["a", "b"]) == 1


def test_prefix_keys_are_stored_with_the_page(make, options):
    """parent and depth: what eviction will go by."""
    pool = FakePool()
    storage = make(pool)
    chain = keys_of(3, seed=5)
    info = FakeExtraInfo(prefix_keys=chain)
    assert storage.batch_set_v1(["leaf"], pool.indices([0]), info) == [True]
    assert storage.batch_set_v1([chain[-1]], pool.indices([1]), FakeExtraInfo(chain[:-1])) == [True]
    details = {}
    for item in storage.store.list(storage.namespace.id):
        details[bytes(item["key"]).decode()] = storage.store.object_stat(item["root"], item["path"])
    assert details["leaf"]["depth"] == 3
    assert details["leaf"]["parent_hash"] == details[chain[-1]]["group_hash"]
    assert storage.batch_set_v1(["root"], pool.indices([2]), FakeExtraInfo([])) == [True]
    assert storage.batch_set_v1(["root2"], pool.indices([2]), FakeExtraInfo(None)) == [True]


def test_a_get_names_the_page_before_it(make, monkeypatch):
    """So that the beginning of a prefix, which SGLang has in its own memory, is not evicted."""
    pool = FakePool()
    storage = make(pool)
    chain = keys_of(3, seed=6)
    seen = []
    transfer = handles.HostPool.transfer

    def noted(self, op, keys, indices, **how):
        seen.append((op, how.get("parent"), how.get("depth")))
        return transfer(self, op, keys, indices, **how)

    monkeypatch.setattr(handles.HostPool, "transfer", noted)
    assert storage.batch_set_v1(["leaf"], pool.indices([0]), FakeExtraInfo(chain)) == [True]
    assert storage.batch_get_v1(["leaf"], pool.indices([0]), FakeExtraInfo(chain)) == [True]
    assert storage.batch_get_v1(["leaf"], pool.indices([0])) == [True]
    assert seen == [("set", chain[-1], 3), ("get", chain[-1], 3), ("get", None, None)]


# ---------------------------------------------------------------- misuse, closing


def test_before_registration_and_after_close_nothing_raises(make, caplog):
    storage = make()
    indices = array("q", range(4))
    transfer = FakeTransfer("mamba", ["k"], indices)

    def calls():
        return [
            storage.batch_get_v1(["k"], indices),
            storage.batch_set_v1(["k"], indices),
            storage.batch_exists(["k"]),
            storage.batch_exists_v2(["k"], [transfer]).kv_hit_pages,
            storage.batch_get_v2([transfer]),
            storage.batch_set_v2([transfer]),
            storage.get("k", bytearray(8)),
            storage.batch_get(["k", "l"], [bytearray(8)] * 2),
            storage.exists("k"),
        ]

    want = [[False], [False], 0, 0, {"mamba": [False]}, {"mamba": [False]}, None, [None] * 2, False]
    assert calls() == want
    storage.close()
    assert calls() == want
    assert storage.set("k", b"x") is False and storage.batch_set(["k"], [b"x"]) is False
    assert storage.clear() is False
    storage.close()
    with pytest.raises(kvcellar.Error):
        storage.register_mem_pool_host(FakePool())


def test_unknown_side_pools_are_misses(make):
    pool = FakePool()
    storage = make(pool)
    assert storage.batch_set_v1(["k"], pool.indices([0])) == [True]
    transfer = FakeTransfer("swa", ["k"], pool.indices([0]))
    assert storage.batch_get_v2([transfer]) == {"swa": [False]}
    found = storage.batch_exists_v2(["k"], [transfer])
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (0, [])


def test_one_wrong_transfer_leaves_the_others_alone(make):
    pool, side = FakePool(), FakePool(token_bytes=256)
    storage = make(pool)
    storage.register_mem_host_pool_v2(side, "swa")
    good = FakeTransfer("swa", ["a", "b"], side.indices([0, 1]))
    bad = FakeTransfer("kv", ["a", "b"], pool.indices([0]))
    assert storage.batch_set_v2([bad, good]) == {"kv": [False, False], "swa": [True, True]}


def test_an_error_is_logged_once(make, caplog, monkeypatch):
    pool = FakePool()
    storage = make(pool)
    monkeypatch.setattr(storage, "_move", lambda *args: 1 / 0)
    with caplog.at_level(logging.ERROR, "kvcellar.sglang"):
        for _ in range(5):
            assert storage.batch_get_v1(["k"], pool.indices([0])) == [False]
    assert len([r for r in caplog.records if r.levelno == logging.ERROR]) == 1


def test_reports_say_how_many_were_silent(caplog, monkeypatch):
    clock = iter([0.0, 1.0, 2.0, 100.0])
    monkeypatch.setattr("kvcellar.sglang.calls.time.monotonic", lambda: next(clock))
    reports = Reports()
    with caplog.at_level(logging.ERROR, "kvcellar.sglang"):
        for _ in range(4):
            reports.report("kind", "bad %s", "luck")
    assert [r.getMessage() for r in caplog.records] == [
        "kvcellar: bad luck", "kvcellar: bad luck (2 more since the last such line)"]


@pytest.mark.parametrize(("line", "shown"), (
    ("ro: set: Read-only file system", "kvcellar: ro: set: Read-only file system"),
    ("kvcellar: 100 % of it", "kvcellar: 100 % of it"),
))
def test_lines_of_the_library_name_it_once(line, shown, caplog, monkeypatch):
    """SGLang's log format has no logger's name in it."""
    callbacks = []
    monkeypatch.setattr("kvcellar.set_log", lambda callback, level: callbacks.append(callback))
    start_logging()
    with caplog.at_level(logging.WARNING, "kvcellar"):
        callbacks[0](1, line)
    assert [(r.levelno, r.getMessage()) for r in caplog.records] == [(logging.WARNING, shown)]


def test_close_waits_for_calls_at_work(make):
    pool = FakePool()
    storage = make(pool)
    fill(pool, range(16))
    inside, go = threading.Event(), threading.Event()
    original = storage.store.run

    class Slow:
        def __getattr__(self, name):
            return getattr(storage_store, name)

        def run(self, transfers):
            inside.set()
            assert go.wait(30)
            return original(transfers)

    storage_store = storage.store
    storage.store = Slow()
    results = []
    worker = threading.Thread(
        target=lambda: results.append(storage.batch_set_v1(keys_of(2), pool.indices([0, 1]))))
    worker.start()
    assert inside.wait(30)
    closer = threading.Thread(target=storage.close)
    closer.start()
    while not storage._calls.closed:
        pass
    assert storage.batch_exists(keys_of(2)) == 0  # a miss, at once
    assert closer.is_alive() and not storage_store.closed
    go.set()
    worker.join(30)
    closer.join(30)
    assert results == [[True, True]] and storage_store.closed


def test_a_call_that_outlasts_close_closes(caplog):
    """close() does not wait for ever; the last call out ends the storage."""
    calls, done = Calls(), []
    calls.inside |= {"a", "b"}
    assert calls.close(lambda: done.append(1), 0.01) is False
    assert calls.closed and done == []
    calls.inside.discard("a")
    calls.settle()
    assert done == []
    calls.inside.discard("b")
    calls.settle()
    calls.settle()
    assert done == [1]
    assert calls.close(lambda: done.append(2), 0.01) is True and done == [1]


def test_a_close_that_is_interrupted_can_be_done_again():
    calls, done = Calls(), []

    def finish():
        done.append(1)
        if len(done) == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        calls.close(finish, 1)
    assert calls.close(finish, 1) is True and done == [1, 1]


def test_errors_of_closing_are_logged(caplog):
    calls = Calls()
    assert calls.close(lambda: 1 / 0, 1) is True
    assert "division by zero" in caplog.text


def interrupted_everywhere(run):
    """Calls run() again and again, interrupted as if by Ctrl-C at its first place where CPython
    lets a signal handler run, then at the second, and so on, until it comes through."""
    for place in range(10000):
        left = [place]

        def tracer(frame, event, arg):
            if not frame.f_code.co_filename.endswith(("calls.py", "storage.py")):
                return None
            if event in ("call", "c_return"):
                left[0] -= 1
                if left[0] < 0:
                    sys.setprofile(None)
                    raise KeyboardInterrupt
            return None

        sys.setprofile(tracer)
        try:
            run()
            sys.setprofile(None)
            if left[0] >= 0:
                return place
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)
    raise AssertionError("it never comes through")


def test_calls_that_are_interrupted_count_no_longer(make):
    """Wherever the exception of a signal handler comes, close() is not kept waiting by it."""
    pool = FakePool()
    storage = make(pool)
    assert interrupted_everywhere(lambda: storage.batch_exists(["k"])) > 3
    assert interrupted_everywhere(lambda: storage.batch_get_v1(["k"], None)) > 3
    assert storage._calls.inside == set()
    store = storage.store
    assert interrupted_everywhere(storage.close) > 3
    assert store.closed
    assert interrupted_everywhere(lambda: storage.batch_exists(["k"])) > 1


@pytest.mark.parametrize("holder", ["_reports._lock", "_stats_lock", "_calls._condition",
                                    "_registry._lock"])
def test_a_signal_handler_may_use_the_storage(make, holder):
    """Whatever lock its thread holds at that moment."""
    pool = FakePool()
    storage = make(pool, enable_storage_metrics=True)
    lock = storage
    for name in holder.split("."):
        lock = getattr(lock, name)
    done = []

    def handler():
        with lock:
            done.append(storage.batch_get_v1(["k"], None))
            done.append(storage.batch_set_v1(["k"], pool.indices([0])))
            done.append(storage.get_stats().backup_pgs)
            done.append(storage.exists("other"))

    thread = threading.Thread(target=handler, daemon=True)
    thread.start()
    thread.join(20)
    assert done == [[False], [True], [1], False]


def test_a_signal_handler_may_ask_for_a_switch_interval():
    def handler():
        with calls_module.switch_interval._lock:
            calls_module.switch_interval.acquire(sys.getswitchinterval())
            calls_module.switch_interval.release()
            done.append(1)

    done = []
    thread = threading.Thread(target=handler, daemon=True)
    thread.start()
    thread.join(20)
    assert done == [1]


class Refuses:
    """Keys that nobody can count."""

    def __len__(self):
        raise RuntimeError("no length")


class Unhashable(str):
    __hash__ = None


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("what", [None, 5, 2.5, object(), Refuses(), iter(["k"]), range(9),
                                  [None], [5], [[]], True, b"k", Ellipsis], ids=repr)
def test_whatever_is_passed_nothing_raises(make, what, closed):
    storage = make(FakePool())
    if closed:
        storage.close()
    indices = array("q", range(4))
    for op in (storage.batch_get_v1, storage.batch_set_v1):
        assert not any(op(what, indices))
        assert not any(op(host_indices=indices, keys=what))
    for v2 in (storage.batch_get_v2, storage.batch_set_v2):
        assert not any(any(done) for done in v2(what).values())
        assert v2([FakeTransfer("kv", what, indices)]).keys() == {"kv"}
        assert v2([what]) == {}
        assert v2([FakeTransfer(Unhashable("kv"), ["k"], indices)]) == {}
    assert storage.batch_exists(what) == 0
    assert storage.batch_exists_v2(what).kv_hit_pages == 0
    assert storage.batch_exists_v2(["k"], what).kv_hit_pages == 0
    assert storage.batch_exists_v2(["k"], [what]).kv_hit_pages == 0
    assert storage.exists(what) is False
    assert storage.get(what, bytearray(8)) is None
    assert not any(storage.batch_get(what, [bytearray(8)]))
    assert storage.clear() is not None


def test_a_default_goes_by_the_first_argument_however_it_is_passed(make):
    storage = make()
    storage.close()
    assert storage.batch_get_v1(host_indices=[0] * 9, keys=["a", "b"]) == [False] * 2
    assert storage.batch_get(target_locations=[], keys=["a"]) == [None]


@pytest.mark.parametrize("bad", [
    None, FakeTransfer("kv", Refuses(), array("q", range(4))), FakeTransfer("kv", [5, []], None),
    FakeTransfer("kv", [object()], array("q", range(4))), FakeTransfer(Unhashable("kv"), ["k"]),
    FakeTransfer("kv", ["k"], object())], ids=str)
def test_a_malformed_transfer_fails_alone(make, bad, caplog):
    pool, side = FakePool(), FakePool(token_bytes=256)
    storage = make(pool)
    storage.register_mem_host_pool_v2(side, "swa")
    good = FakeTransfer("swa", ["a", "b"], side.indices([0, 1]))
    for transfers in ([bad, good], [good, bad]):
        for move in (storage.batch_set_v2, storage.batch_get_v2):
            done = move(transfers)
            assert done.pop("swa") == [True, True]
            assert not any(done.get("kv", ()))
    assert "transfer 0" in caplog.text and "transfer 1" in caplog.text


def test_a_call_has_less_than_ten_seconds(make):
    storage = make(FakePool(), extra={"get_timeout_ms": 60000})
    assert storage._timeout("get") == {"timeout_ms": 9000}
    assert storage._timeout("set") == {}
    deadline = Deadline({"get": 60000, "set": 100})
    assert 0 < deadline.timeout_ms("get") <= 9000
    assert deadline.timeout_ms("set") == 100


# ---------------------------------------------------------------- configuration, registration


def test_configuration_errors_come_from_the_constructor(options, tmp_path):
    (tmp_path / "root").mkdir()
    for wrong, word in (
        ({"storage_dirz": "x"}, "storage_dirz"),
        ({"get_timeout_ms": "soon"}, "get_timeout_ms"),
        ({"switch_interval_us": "fast"}, "switch_interval_us"),
        ({"switch_interval_us": 0}, "switch_interval_us"),
        ({"switch_interval_us": True}, "switch_interval_us"),
    ):
        with pytest.raises(kvcellar.ConfigError, match=word):
            KvCellarStorage(FakeConfig(extra_config=options | wrong), {})
    missing = options | {"storage_dirs": [str(tmp_path / "no" / "such")]}
    with pytest.raises(kvcellar.Error, match="such"):
        KvCellarStorage(FakeConfig(extra_config=missing), {})


def test_sglangs_own_keys_are_accepted(make):
    make(extra={"interface_v1": 1, "backend_name": "kvcellar", "module_path": "kvcellar.sglang",
                "class_name": "KvCellarStorage"})


def test_registration_says_where_things_are(make, caplog, tmp_path):
    with caplog.at_level(logging.INFO, "kvcellar.sglang"):
        storage = make(FakePool(), is_mla_model=True, tp_rank=1, tp_size=2)
    lines = [r.getMessage() for r in caplog.records if "mem_pool_device_type" in r.getMessage()]
    assert len(lines) == 1
    for text in ("mem_pool_device_type cpu", "is_mla_model True", "tp_rank 1", "backup_skip True",
                 "zero_copy True", "plugin posix", str(tmp_path / "root"), storage.namespace.id):
        assert text in lines[0]


def registrations(storage):
    return storage.store.stats()["host_registrations"]


def test_memory_is_registered_and_given_back(make):
    pool, side = FakePool(), FakePool(token_bytes=256)
    storage = make(pool)
    assert registrations(storage) == 1
    storage.register_mem_host_pool_v2(pool, "kv")  # as SGLang does: the anchor once more
    assert registrations(storage) == 1
    storage.register_mem_host_pool_v2(side, "swa")
    assert registrations(storage) == 2
    storage._registry.close()
    assert registrations(storage) == 0


STEPS = ("namespace", "pool", "second pool", "register_memory")


@pytest.mark.parametrize("step", STEPS)
def test_each_step_of_a_registration_is_undone(make, monkeypatch, step):
    """The ladder: whichever step fails, nothing of the registration is left, and it can be done
    again afterwards."""
    storage, pool = make(), FakePool()
    failing = Failing(storage.store, step)
    storage._registry.store = failing
    with pytest.raises(kvcellar.Error, match="injected"):
        storage.register_mem_pool_host(pool)
    assert failing.open == [] and failing.failed == 1
    assert storage.namespace is None and registrations(storage) == 0
    assert storage.batch_set_v1(["k"], pool.indices([0])) == [False]
    storage._registry.store = storage.store
    storage.register_mem_pool_host(pool)
    fill(pool, [0])
    assert storage.batch_set_v1(["k"], pool.indices([0])) == [True]


@pytest.mark.parametrize("step", STEPS[1:])
def test_a_side_pool_that_fails_is_named_and_undone(make, caplog, step):
    """SGLang registers side pools when half of the attach is done: an error would leave it so."""
    pool, side = FakePool(), FakePool(token_bytes=256)
    storage = make(pool)
    before = registrations(storage)
    failing = Failing(storage.store, step, storage.namespace)
    storage._registry.store = failing
    storage._registry.namespace = failing.wrap(storage.namespace)
    storage.register_mem_host_pool_v2(side, "swa")
    assert "pool swa" in caplog.text and "injected" in caplog.text
    assert failing.open == [] and registrations(storage) == before
    assert storage.batch_set_v2([FakeTransfer("swa", ["k"], side.indices([0]))]) == {"swa": [False]}
    fill(pool, [0])
    assert storage.batch_set_v1(["k"], pool.indices([0])) == [True]


class Failing:
    """A store whose n-th step fails; knows what was opened through it and not closed."""

    def __init__(self, store, step, namespace=None):
        self.store, self.step = store, step
        self.open, self.failed, self.pools = [], 0, 0

    def __getattr__(self, name):
        return getattr(self.store, name)

    def fail(self, *steps):
        if self.step in steps:
            self.failed += 1
            raise kvcellar.Error(28, "injected")

    def namespace(self, *args, **kwargs):
        self.fail("namespace")
        return Tracked(self.wrap(self.store.namespace(*args, **kwargs)), self.open)

    def register_memory(self, *args, **kwargs):
        self.fail("register_memory")
        return Tracked(self.store.register_memory(*args, **kwargs), self.open)

    def wrap(self, namespace):
        failing = self

        class Namespace:
            def __getattr__(self, name):
                return getattr(namespace, name)

            def pool(self, *args, **kwargs):
                failing.pools += 1
                failing.fail("pool" if failing.pools == 1 else "second pool")
                return Tracked(namespace.pool(*args, **kwargs), failing.open)

        return Namespace()


class Tracked:
    def __init__(self, inner, open_list):
        self.inner, self.open_list = inner, open_list
        open_list.append(self)

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def close(self):
        self.inner.close()
        self.open_list.remove(self)


def test_a_pool_without_a_way_to_its_pages_is_refused(make):
    class Opaque:
        device, layout, page_size, size, kv_buffer = "cpu", "odd", 4, 64, FakePool().kv_buffer

    with pytest.raises(kvcellar.ConfigError, match="Opaque.*odd"):
        make(Opaque())


def test_switch_interval_is_put_back(make, caplog):
    before = sys.getswitchinterval()
    with caplog.at_level(logging.INFO, "kvcellar.sglang"):
        make()
        first = make(extra={"switch_interval_us": 700})
        second = make(extra={"switch_interval_us": 700})
    assert sys.getswitchinterval() == pytest.approx(0.0007)
    told = [r.getMessage() for r in caplog.records if "switch interval" in r.getMessage()]
    assert told == [
        f"kvcellar: switch interval of the interpreter: {was:.0f} us before, 700 us now"
        for was in (before * 1e6, 700)]
    first.close()
    assert sys.getswitchinterval() == pytest.approx(0.0007)
    second.close()
    assert sys.getswitchinterval() == before
    make().close()
    assert sys.getswitchinterval() == before


# ---------------------------------------------------------------- names, ranks, identity


def test_r12_ranks_have_their_own_pages(make):
    """MHA: tp 4 x pp 2 x cp 2 set one key with different bytes; each reads its own. MLA: shared
    over tp, not over pp and cp."""
    places = [(tp, pp, cp) for tp in range(4) for pp in range(2) for cp in range(2)]

    def at(place, mla):
        tp, pp, cp = place
        pool = FakePool(pages=2, parts=1 if mla else 2)
        storage = make(pool, tp_rank=tp, tp_size=4, pp_rank=pp, pp_size=2, attn_cp_rank=cp,
                       attn_cp_size=2, is_mla_model=mla)
        return storage, pool

    for mla in (False, True):
        for n, place in enumerate(places):
            storage, pool = at(place, mla)
            fill(pool, [0], seed=n)
            assert storage.batch_set_v1([f"key-{mla}"], pool.indices([0])) == [True]
        for n, (tp, pp, cp) in enumerate(places):
            storage, pool = at((tp, pp, cp), mla)
            assert storage.batch_get_v1([f"key-{mla}"], pool.indices([1])) == [True]
            writer = places.index((0, pp, cp)) if mla else n
            assert pool.read(1) == page_data(writer, pool.page_bytes)


def test_r13_mla_has_one_writer(make, tmp_path):
    pool = FakePool(parts=1)
    reader = make(pool, is_mla_model=True, tp_rank=1, tp_size=2)
    fill(pool, [0, 1])
    assert reader.batch_set_v1(["k"], pool.indices([0])) == [True]
    assert reader.batch_set(["t"], [b"tensor"]) is True
    assert files_of(tmp_path) == []
    assert reader.batch_get_v1(["k"], pool.indices([2])) == [False]
    writer_pool = FakePool(parts=1)
    writer = make(writer_pool, is_mla_model=True, tp_rank=0, tp_size=2)
    fill(writer_pool, [3], seed=9)
    assert writer.batch_set_v1(["k"], writer_pool.indices([3])) == [True]
    assert reader.batch_get_v1(["k"], pool.indices([2])) == [True]
    assert pool.read(2) == writer_pool.read(3)


def test_mamba_is_written_by_every_rank_under_mla(make):
    for rank in range(2):
        pool, state = FakePool(parts=1), FakePool(page_size=1, pages=8, token_bytes=4096)
        storage = make(pool, is_mla_model=True, tp_rank=rank, tp_size=2)
        storage.register_mem_host_pool_v2(state, "mamba")
        fill(state, [0], seed=rank)
        set_ = FakeTransfer("mamba", ["k"], state.indices([0]))
        assert storage.batch_set_v2([set_]) == {"mamba": [True]}
    for rank in range(2):
        pool, state = FakePool(parts=1), FakePool(page_size=1, pages=8, token_bytes=4096)
        storage = make(pool, is_mla_model=True, tp_rank=rank, tp_size=2)
        storage.register_mem_host_pool_v2(state, "mamba")
        get = FakeTransfer("mamba", ["k"], state.indices([5]))
        assert storage.batch_get_v2([get]) == {"mamba": [True]}
        assert state.read(5) == page_data(rank, state.page_bytes)


class Args:
    """Server arguments of SGLang."""

    def __init__(self, **fields):
        self.__dict__.update(fields)


@pytest.mark.parametrize("other", [
    {"pool": {"token_bytes": 512}},
    {"pool": {"layout": "page_first_direct"}},
    {"pool": {"dtype": "torch.float16"}},
    {"pool": {"page_size": 8, "token_bytes": 512}},
    {"extra": {"identity": "revision-2"}},
    {"fields": {"model_name": "org-model"}},
    {"fields": {"model_name": None}},
    {"fields": {"tp_size": 2}},
    {"fields": {"is_mla_model": True}},
])
def test_r14_other_pages_are_no_hits(make, other):
    pool = FakePool()
    first = make(pool, extra={"identity": "revision-1"})
    fill(pool, [0])
    assert first.batch_set_v1(["k"], pool.indices([0])) == [True]
    changed = FakePool(**other.get("pool", {}))
    second = make(changed, extra={"identity": "revision-1"} | other.get("extra", {}),
                  **other.get("fields", {}))
    assert second.batch_exists(["k"]) == 0
    assert second.batch_get_v1(["k"], changed.indices([0])) == [False]
    assert first.batch_exists(["k"]) == 1


def test_r14_no_identity_is_one_warning_and_info_says_so(make, caplog):
    with caplog.at_level(logging.INFO, "kvcellar"):
        storage = make(FakePool())
        storage.set("t", b"x")
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING
                and "identity is unset" in r.getMessage()]
    assert len(warnings) == 1 and warnings[0].startswith("kvcellar: ")
    assert "unset" in storage.store.describe("text")


def test_fp8_kinds_differ_though_both_are_bytes(make, monkeypatch):
    ids = []
    for kind in ("fp8_e4m3", "fp8_e5m2", "auto"):
        monkeypatch.setattr(identity, "server_args", lambda: Args(kv_cache_dtype=kind))
        ids.append(make(FakePool(dtype="torch.uint8")).namespace.id)
    assert len(set(ids)) == 3


def test_r15_tenants(make):
    pool = FakePool()
    found = {}
    for tenant, model in (("a", "bc"), ("ab", "c"), ("", "abc"), (None, "abc")):
        extra = {} if tenant is None else {"tenant": tenant}
        storage = make(pool, extra=extra, model_name=model)
        assert storage.batch_exists(["k"]) == 0
        fill(pool, [0])
        assert storage.batch_set_v1(["k"], pool.indices([0])) == [True]
        found[storage.namespace.id] = storage
    assert len(found) == 4


def test_dp_replicas_share(make):
    pool = FakePool()
    fill(pool, [0])
    assert make(pool, dp_rank=0).batch_set_v1(["k"], pool.indices([0])) == [True]
    assert make(pool, dp_rank=3).batch_exists(["k"]) == 1


# ---------------------------------------------------------------- identity


def model_folder(path, weights=b"w" * 100000, config=b"{}"):
    path.mkdir(parents=True)
    (path / "config.json").write_bytes(config)
    (path / "model.safetensors").write_bytes(weights)
    return Args(model_path=str(path), kv_cache_dtype="auto")


def test_identity_changes_with_the_model(tmp_path):
    args = model_folder(tmp_path / "m")
    first = identity.derive(args)
    assert first == identity.derive(args)
    seen = {first}
    weights = bytearray(b"w" * 100000)
    weights[100000 * 21 // 64 + 17] ^= 1  # within a sample
    (tmp_path / "m" / "model.safetensors").write_bytes(weights)
    seen.add(identity.derive(args))
    (tmp_path / "m" / "model.safetensors").write_bytes(b"w" * 100001)
    seen.add(identity.derive(args))
    (tmp_path / "m" / "config.json").write_bytes(b'{"a": 1}')
    seen.add(identity.derive(args))
    for field, value in (("kv_cache_dtype", "fp8_e5m2"), ("quantization", "awq"), ("revision", "x"),
                         ("json_model_override_args", '{"rope_theta": 1}')):
        setattr(args, field, value)
        seen.add(identity.derive(args))
    assert len(seen) == 8


def test_identity_of_a_snapshot_is_its_commit(tmp_path):
    commit = "0123456789abcdef0123456789abcdef01234567"
    args = model_folder(tmp_path / "models--org--m" / "snapshots" / commit)
    first = identity.derive(args)
    # The weights of a commit never change, and are not read.
    (tmp_path / "models--org--m" / "snapshots" / commit / "model.safetensors").unlink()
    assert identity.derive(args) == first


def test_identity_covers_a_draft_model(tmp_path):
    args = model_folder(tmp_path / "m")
    without = identity.derive(args)
    args.speculative_draft_model_path = model_folder(tmp_path / "d").model_path
    with_draft = identity.derive(args)
    (tmp_path / "d" / "config.json").write_bytes(b"[]")
    assert len({without, with_draft, identity.derive(args)}) == 3


@pytest.mark.parametrize("args", [
    None, Args(), Args(model_path="no/such-repository"),
    Args(model_path=os.path.dirname(os.path.abspath(__file__))),
    Args(model_path=os.path.abspath(__file__)),
])
def test_identity_says_why_it_cannot_be_derived(args):
    with pytest.raises(identity.UnknownIdentity) as caught:
        identity.derive(args)
    assert str(caught.value)


def test_identity_from_the_server_arguments_is_used(make, monkeypatch, tmp_path):
    args = model_folder(tmp_path / "m")
    monkeypatch.setattr(identity, "server_args", lambda: args)
    first = make(FakePool()).namespace.id
    (tmp_path / "m" / "config.json").write_bytes(b"[]")
    assert make(FakePool()).namespace.id != first
    given = make(FakePool(), extra={"identity": "mine"}).namespace.id
    (tmp_path / "m" / "config.json").write_bytes(b"{}")
    assert make(FakePool(), extra={"identity": "mine"}).namespace.id == given


# ---------------------------------------------------------------- marks


def test_r23_a_page_that_cannot_be_read_is_not_paid_for_again(make):
    """It exists, and reading it fails with EIO: after two failures it is a miss without I/O, until
    it is set again."""
    faults = {"plugin": {"fault": {"active": True, "lower": "posix",
                                   # By its name as a file; in slots two reads, the first of a call.
                                   "rules": "read error=EIO name=*/bad.* count=2; "
                                            "read error=EIO name=*/seg.* nth=1; "
                                            "read error=EIO name=*/seg.* nth=3"}}}
    pool = FakePool()
    storage = make(pool, extra=faults)
    fill(pool, [0, 1])
    assert storage.batch_set_v1(["bad", "good"], pool.indices([0, 1])) == [True] * 2
    assert storage.batch_exists(["bad", "good"]) == 2
    for _ in range(4):
        got = storage.batch_get_v1(["bad", "good"], pool.indices([2, 3]))
        assert got == [False, True]
    causes = storage.store.stats()["operations"]["get"]["causes"]
    assert (causes["io"], causes["marked"]) == (2, 2)
    assert storage.batch_exists(["bad"]) == 0
    assert storage.batch_set_v1(["bad"], pool.indices([0])) == [True]
    assert storage.batch_exists(["bad"]) == 1
    assert storage.batch_get_v1(["bad"], pool.indices([2])) == [True]
    assert pool.read(2) == pool.read(0)


# ---------------------------------------------------------------- hit policies


def exists_of(storage, keys, *transfers):
    found = storage.batch_exists_v2(keys, list(transfers))
    hits = {getattr(k, "value", k): v for k, v in found.extra_pool_hit_pages.items()}
    return found.kv_hit_pages, hits, found.restorable_prefix_pages


def test_side_pools_limit_what_can_be_restored(make):
    pool, state = FakePool(), FakePool(page_size=1, pages=32, token_bytes=4096)
    storage = make(pool)
    storage.register_mem_host_pool_v2(state, "mamba")
    keys = keys_of(6)
    assert storage.batch_set_v1(keys[:5], pool.indices(list(range(5)))) == [True] * 5
    stored = [keys[1], keys[3]]
    set_ = FakeTransfer("mamba", stored, state.indices([0, 1]))
    assert storage.batch_set_v2([set_]) == {"mamba": [True, True]}
    last = FakeTransfer("mamba", ["?"], None, "trailing_pages")
    assert exists_of(storage, keys, last) == (4, {"kv": 5, "mamba": 4}, [2, 4])
    every = FakeTransfer("mamba", None, None, "all_pages")
    assert exists_of(storage, keys, every) == (0, {"kv": 5}, [])
    two = FakeTransfer("mamba", ["?", "?"], None, "trailing_pages")
    assert exists_of(storage, keys, two) == (0, {"kv": 5}, [])


def test_block_groups_report_and_limit_nothing(make):
    pool, side = FakePool(), FakePool(token_bytes=256)
    storage = make(pool)
    storage.register_mem_host_pool_v2(side, "deepseek_v4_c4")
    keys, blocks = keys_of(8), keys_of(6, seed=3)
    assert storage.batch_set_v1(keys, pool.indices(list(range(8)))) == [True] * 8
    set_ = FakeTransfer("deepseek_v4_c4", blocks[:5], side.indices(list(range(5))))
    assert all(storage.batch_set_v2([set_])["deepseek_v4_c4"])
    # Blocks of 3 pages have 2 keys each; two groups are complete, the third is not.
    ask = FakeTransfer("deepseek_v4_c4", blocks, None, "block_groups", 3, 2)
    found = exists_of(storage, keys, ask)
    assert found == (8, {"kv": 8, "deepseek_v4_c4": 6}, list(range(1, 9)))
    # Without keys of blocks there is nothing to say.
    ask = FakeTransfer("deepseek_v4_c4", None, None, "block_groups", 3, 2)
    assert exists_of(storage, keys, ask) == (8, {"kv": 8}, list(range(1, 9)))


def test_a_logical_anchor_stores_its_keys(make):
    anchor, side = FakeAnchor(), FakePool(token_bytes=256)
    storage = make(anchor, is_mla_model=True)
    storage.register_mem_host_pool_v2(anchor, "kv")
    storage.register_mem_host_pool_v2(side, "deepseek_v4_c4")
    keys = keys_of(3)
    assert storage.batch_exists(keys) == 0
    indices = array("q", range(12))
    assert storage.batch_set_v1(keys, indices) == [True] * 3
    assert storage.batch_exists([*keys, "absent"]) == 3
    assert storage.batch_get_v1([*keys, "absent"], indices) == [True] * 3 + [False]
    every = FakeTransfer("deepseek_v4_c4", None, None, "all_pages")
    assert exists_of(storage, keys, every) == (0, {"kv": 3}, [])


# ---------------------------------------------------------------- tensors without torch


def test_buffers_come_back(make):
    storage = make(FakePool())
    values = [b"", b"x", bytes(range(256)) * 40, os.urandom(100001)]
    keys = keys_of(len(values), seed=8)
    assert storage.batch_set(keys, values) is True
    targets = [bytearray(len(v)) for v in values]
    got = storage.batch_get(keys, targets)
    assert all(g is t for g, t in zip(got, targets))
    assert [bytes(t) for t in targets] == values
    assert all(storage.exists(key) for key in keys) and not storage.exists("absent")
    assert storage.get("absent", bytearray(5)) is None
    assert storage.get(keys[2], bytearray(5)) is None  # another size
    assert storage.set(keys[2], b"other size") is True
    assert bytes(storage.get(keys[2], bytearray(10))) == b"other size"


def test_addresses_and_sizes(make):
    """The seed's form without tensors: the bytes arrive, and there is no tensor to return."""
    storage = make(FakePool())
    source = (ctypes.c_char * 5000).from_buffer(bytearray(os.urandom(5000)))
    target = (ctypes.c_char * 5000)()
    assert storage.set("k", None, ctypes.addressof(source), 5000) is True
    assert storage.exists("k")
    assert storage.get("k", ctypes.addressof(target), 5000) is None
    assert target.raw == source.raw
    assert storage.batch_set(["l"], None, [ctypes.addressof(source)], [5000]) is True
    assert storage.batch_get(["l"], [ctypes.addressof(target)], [5000]) == [None]


@pytest.mark.parametrize("call", [
    lambda s: s.set("k"),
    lambda s: s.set("k", object()),
    lambda s: s.set("k", None, 4096),
    lambda s: s.batch_set(["k", "l"], [b"x"]),
    lambda s: s.batch_set(["k"], None),
    lambda s: s.batch_set(["k"], None, [4096], [1, 2]),
    lambda s: s.get("k"),
    lambda s: s.get("k", b"read-only"),
    lambda s: any(s.batch_get(["k", "l"], [bytearray(1)])),
    lambda s: any(s.batch_get(["k"])),
])
def test_tensor_calls_that_cannot_be_right(make, call, caplog):
    assert not call(make(FakePool()))
    assert [r.levelno for r in caplog.records if r.name == "kvcellar.sglang"][-1] == logging.ERROR


def test_tensors_of_ranks_that_differ_are_apart(make):
    for rank in range(2):
        assert make(tp_rank=rank, tp_size=2).set("k", bytes([rank]) * 9)
    for rank in range(2):
        got = make(tp_rank=rank, tp_size=2).get("k", bytearray(9))
        assert bytes(got) == bytes([rank]) * 9


def test_a_flat_page_is_the_page(make):
    """batch_set_v1, batch_exists and the tensor calls see one another's pages."""
    pool = FakePool()
    storage = make(pool)
    fill(pool, [0])
    data = bytearray(pool.read(0))
    flat = FakeTensor(data, (pool.page_bytes // 2,), 2, "torch.bfloat16")
    assert storage.batch_set_v1(["v1"], pool.indices([0])) == [True]
    target = bytearray(pool.page_bytes)
    got = storage.get("v1", FakeTensor(target, (pool.page_bytes,), 1, "torch.uint8"))
    assert got is not None and target == data
    assert storage.set("flat", flat) is True
    assert storage.batch_exists(["flat", "v1"]) == 2
    assert storage.batch_get_v1(["flat"], pool.indices([7])) == [True]
    assert pool.read(7) == data


# ---------------------------------------------------------------- clear, statistics


def test_clear_leaves_others_alone(make, tmp_path):
    pool = FakePool()
    mine, other = make(pool), make(pool, model_name="org/model-2")
    fill(pool, [0])
    for storage in (mine, other):
        assert storage.batch_set_v1(["k"], pool.indices([0])) == [True]
    assert mine.set("t", b"tensor")
    assert mine.clear() is True
    assert mine.batch_exists(["k"]) == 0 and not mine.exists("t")
    assert other.batch_exists(["k"]) == 1
    assert mine.clear() is True  # nothing is there
    assert mine.batch_set_v1(["k"], pool.indices([0])) == [True]


def test_statistics_are_drained(make):
    assert make(FakePool()).get_stats() is None
    pool = FakePool()
    storage = make(pool, enable_storage_metrics=True)
    assert storage.batch_set_v1(keys_of(3), pool.indices([0, 1, 2])) == [True] * 3
    assert storage.batch_get_v1(keys_of(4), pool.indices([0, 1, 2, 3])) == [True] * 3 + [False]
    stats = storage.get_stats()
    assert (stats.backup_pgs, stats.prefetch_pgs) == ([3], [3])
    assert len(stats.backup_bandwidth) == len(stats.prefetch_bandwidth) == 1
    assert all(rate > 0 for rate in stats.backup_bandwidth + stats.prefetch_bandwidth)
    assert storage.get_stats().backup_pgs == []
    for _ in range(5000):
        storage._count("get", storage._kv(), [True], 1.0)
    assert len(storage.get_stats().prefetch_pgs) == 4096  # bounded when nobody asks


# ---------------------------------------------------------------- threads


def test_r32_setters_getters_and_exists_on_one_storage(make):
    """2 setters, 2 getters, 1 exists: pages are whole or misses, counts add up."""
    pool = FakePool(pages=64)
    storage = make(pool, enable_storage_metrics=True)
    rounds, keys = 150, keys_of(16)
    fill(pool, range(16))
    want = [pool.read(i) for i in range(16)]
    problems, gets = [], []
    stop = threading.Event()

    def setter(start):
        for i in range(rounds):
            at = [(start + i + j) % 16 for j in range(4)]
            if storage.batch_set_v1([keys[k] for k in at], pool.indices(at)) != [True] * 4:
                problems.append("set")

    def getter(first):
        while not stop.is_set():
            ok = storage.batch_get_v1(keys, pool.indices(list(range(first, first + 16))))
            gets.append(sum(ok))
            for k, good in enumerate(ok):
                if good and pool.read(first + k) != want[k]:
                    problems.append(f"page {k}")

    def looker():
        while not stop.is_set():
            if not 0 <= storage.batch_exists(keys) <= 16:
                problems.append("exists")
            storage.get_stats()

    setters = [threading.Thread(target=setter, args=(i * 7,)) for i in range(2)]
    others = [threading.Thread(target=getter, args=(16 + 16 * i,)) for i in range(2)]
    others.append(threading.Thread(target=looker))
    for thread in setters + others:
        thread.start()
    for thread in setters:
        thread.join(120)
    stop.set()
    for thread in others:
        thread.join(120)
    assert problems == [] and gets and gets[-1] == 16
    assert storage.batch_exists(keys) == 16


def test_r34_other_threads_run_while_pages_move(make):
    """The interpreter's lock is free during I/O. Counted, not timed: a thread that needs the lock
    once per turn makes its turns while each read and write is held up by the fault plugin."""
    slow = {"plugin": {"fault": {"active": True, "lower": "posix", "rules":
            "; ".join(f"{operation} delay_ms=600 name={name}"
                      for operation in ("read", "write") for name in ("*.kv.*", "*/seg.*"))}}}
    pool = FakePool()
    storage = make(pool, extra=slow)
    turns, stop = [0], threading.Event()

    def work():
        while not stop.wait(0.002):
            turns[0] += 1

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for call in (storage.batch_set_v1, storage.batch_get_v1):
            before = turns[0]
            assert call(["k"], pool.indices([0])) == [True]
            assert turns[0] - before > 10
    finally:
        stop.set()
        worker.join(30)


# ---------------------------------------------------------------- registered memory

MAPPINGS = 64


class MappedPool(FakePool):
    """An MLA pool whose memory is one memfd, mapped again and again in a row."""

    MAP_FIXED, MAP_NORESERVE = 0x10, 0x4000

    def allocate(self, nbytes):
        """Takes the place of other memory, with which it goes."""
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int,
                              ctypes.c_int, ctypes.c_long]
        reserved = mmap.mmap(
            -1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | self.MAP_NORESERVE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(reserved))
        once = nbytes // MAPPINGS
        fd = os.memfd_create("pool", os.MFD_CLOEXEC)
        os.ftruncate(fd, once)
        for number in range(MAPPINGS):
            at = start + number * once
            got = libc.mmap(at, once, mmap.PROT_READ | mmap.PROT_WRITE,
                            mmap.MAP_SHARED | self.MAP_FIXED, fd, 0)
            assert got == at, os.strerror(ctypes.get_errno())
        os.close(fd)
        return reserved


def test_mappings_of_one_memfd_are_a_pool(make):
    """Registering only notes the memory down; pages move while it is pinned and afterwards, and
    where it cannot be pinned. Detaching in between waits for nothing that does not end."""
    per_mapping = 32
    pool = MappedPool(pages=MAPPINGS * per_mapping, token_bytes=2048, parts=1)
    keys, first = keys_of(8), list(range(8))
    for _ in range(3):
        storage = make(pool, extra={"use_direct_io": True}, is_mla_model=True)
        assert storage.is_zero_copy
        assert storage.store.stats()["host_registrations"] == 1
        fill(pool, first)
        want = [pool.read(page) for page in first]
        assert storage.batch_set_v1(keys, pool.indices(first)) == [True] * 8
        # Into the last mapping, behind the pages that were stored.
        last = [(MAPPINGS - 1) * per_mapping + 16 + page for page in first]
        assert storage.batch_get_v1(keys, pool.indices(last)) == [True] * 8
        assert [pool.read(page) for page in last] == want
        assert [pool.read(16 + page) for page in first] == want  # the same memory
        storage.close()
        assert storage.store.closed


# ---------------------------------------------------------------- nixl naming


def test_peer_naming_uses_the_peers_files(make, tmp_path):
    pool = FakePool()
    storage = make(pool, extra={"naming": "nixl"}, tp_rank=1, tp_size=2)
    fill(pool, [0])
    assert storage.batch_set_v1(["k"], pool.indices([0])) == [True]
    assert sorted(p.name for p in files_of(tmp_path)) == ["k_org-model_1_2_k", "k_org-model_1_2_v"]


def test_peer_naming_copies_where_the_peer_copies(make, tmp_path):
    """Direct I/O and pages that are no multiple of 4096 bytes: one file per page there."""
    pool = FakePool(token_bytes=1000)
    for direct, names in ((True, ["k_m_0_1"]), (False, ["k_m_0_1", "k_m_0_1_k", "k_m_0_1_v"])):
        storage = make(pool, extra={"naming": "nixl", "use_direct_io": direct}, model_name="m")
        fill(pool, [0])
        assert storage.batch_set_v1(["k"], pool.indices([0])) == [True]
        assert sorted(p.name for p in files_of(tmp_path)) == names


@pytest.mark.parametrize("direct", [True, False])
def test_peer_naming_of_a_logical_anchor(make, tmp_path, direct):
    storage = make(FakeAnchor(), extra={"naming": "nixl", "use_direct_io": direct},
                   is_mla_model=True, model_name="m")
    indices = array("q", range(8))
    assert storage.batch_get_v1(["k"], indices[:4]) == [False]
    assert storage.batch_set_v1(["k", "l"], indices) == [True, True]
    assert sorted(p.name for p in files_of(tmp_path)) == ["k_m", "l_m"]
    payload = 4096 if direct else 1
    assert files_of(tmp_path)[0].read_bytes()[:payload] == b"\x01" * payload
    assert storage.batch_get_v1(["k", "l"], indices) == [True, True]


# ---------------------------------------------------------------- plans


def test_plans_refuse_addresses_outside_of_the_pool():
    class Elsewhere(FakePool):
        def get_page_buffer_meta(self, indices):
            at, sizes = super().get_page_buffer_meta(indices)
            return [address + (1 << 30) for address in at], sizes

    with pytest.raises(pools.NoPlan, match="outside"):
        list(pools.plans(Elsewhere(), anchor=True))


class Moving(FakePool):
    """A shared arena: page p is at slot 15 - p at the moment."""

    shift = 0

    class Domain:
        held = 0

        def acquire_layout(self):
            self.held += 1

        def release_layout(self):
            self.held -= 1

    def __init__(self, **fields):
        super().__init__(parts=1, **fields)
        self.shared_allocation_domain = self.Domain()
        self.item_bytes = self.page_bytes

    def get_page_buffer_meta(self, indices):
        moved = array("q", [(15 - i // 4) * 4 + i % 4 for i in indices])
        at, sizes = super().get_page_buffer_meta(moved)
        return [address + self.shift for address in at], sizes


def test_pages_that_move_about_are_asked_for_in_each_call(make, caplog):
    pool = Moving()
    with caplog.at_level(logging.WARNING, "kvcellar.sglang"):
        storage = make(pool)
    assert "not zero copy" in caplog.text
    fill(pool, range(16))
    assert storage.batch_set_v1(["k"], pool.indices([2])) == [True]
    assert storage.batch_get_v1(["k"], pool.indices([5])) == [True]
    assert pool.read(10) == pool.read(13)
    assert pool.shared_allocation_domain.held == 0


class Indices(array):
    """Indices of the dtype that a tensor of them would have."""

    dtype = "torch.int64"


@pytest.mark.parametrize("moving", [False, True])
@pytest.mark.parametrize("dtype", ["torch.bool", "torch.float32", "torch.float64",
                                   "torch.complex64", "float16"])
def test_indices_are_whole_numbers(make, moving, dtype, caplog):
    pool = Moving() if moving else FakePool()
    storage = make(pool)
    indices = Indices("q", pool.indices([1]))
    indices.dtype = dtype
    assert storage.batch_set_v1(["k"], indices) == [False]
    assert dtype in caplog.text
    indices.dtype = "torch.int64"
    assert storage.batch_set_v1(["k"], indices) == [True]


@pytest.mark.parametrize("first", [-4, 1, 3, 64, 1 << 40])
def test_pages_that_move_about_have_indices_of_the_pool(make, first, caplog):
    """The pool itself would answer with a neighbour's address, or one of nobody."""
    pool = Moving()
    storage = make(pool)
    indices = array("q", range(first, first + 4))
    assert storage.batch_set_v1(["k"], indices) == [False]
    assert storage.batch_get_v1(["k"], indices) == [False]
    assert f"index {first} is not" in caplog.text
    assert storage.batch_set_v1(["k"], pool.indices([15])) == [True]


@pytest.mark.parametrize("shift", [1 << 40, -(1 << 20), 1])
def test_addresses_of_a_call_lie_in_the_pool(make, shift, caplog):
    """Page 0 is the last one in memory: a byte further it would leave it."""
    pool = Moving()
    storage = make(pool)
    pool.shift = shift
    assert storage.batch_set_v1(["k"], pool.indices([0])) == [False]
    assert storage.batch_get_v1(["k"], pool.indices([0])) == [False]
    assert "outside of its memory" in caplog.text
    assert pool.shared_allocation_domain.held == 0


def test_a_refused_plan_is_not_the_end(make, monkeypatch):
    """The next way is taken when the library refuses the first; the first error is what is told."""
    pool = FakePool()
    original = pools.plans

    def two(host_pool, **how):
        plan = next(original(host_pool, **how))
        yield pools.replace(plan, page_count=1 << 62)
        yield plan

    monkeypatch.setattr(registry.pools, "plans", two)
    storage = make(pool)
    assert storage.batch_set_v1(["k"], pool.indices([0])) == [True]


@pytest.mark.parametrize("fields, named", [
    ({"extra_config": [1]}, "extra config"),
    ({"extra_config": "text"}, "extra config"),
    ({"extra_config": 5}, "extra config"),
    ({"tp_lcm_size": "x"}, "tp_lcm_size"),
    ({"tp_lcm_size": float("nan")}, "tp_lcm_size"),
    ({"tp_rank": None}, "tp_rank"),
    ({"tp_size": 1.5}, "tp_size"),
    ({"attn_cp_size": float("nan")}, "attn_cp_size"),
    ({"should_split_heads": True, "tp_lcm_size": None}, "tp_lcm_size"),
    ({"model_name": 5}, "model_name"),
    ({"model_name": b"m"}, "model_name"),
])
def test_a_configuration_that_makes_no_sense_is_named(fields, named, tmp_path):
    with pytest.raises(kvcellar.ConfigError, match=named):
        KvCellarStorage(FakeConfig(**({"extra_config": {"storage_dirs": [str(tmp_path)]}}
                                      | fields)), {})


def test_the_anchor_again_keeps_the_side_pools(make):
    pool, side = FakePool(), FakePool()
    storage = make(pool)
    storage.register_mem_host_pool_v2(side, "swa")
    fill(side, [0])
    keys = keys_of(1)
    storage.register_mem_pool_host(pool)
    transfer = FakeTransfer("swa", keys, side.indices([0]))
    assert storage.batch_set_v2([transfer]) == {"swa": [True]}


def test_memory_that_was_given_up_is_no_pool():
    pool = FakePool()
    pool.get_page_buffer_meta = lambda indices: ([0] * 2, [64] * 2)
    with pytest.raises(pools.NoPlan, match="given up"):
        pools._linear([0, 1], [[0, 0], [64, 64]], [[64, 64], [64, 64]])


def test_an_odd_folder_costs_the_identity_only_where_it_must(tmp_path):
    class Args:
        model_path = str(tmp_path)

    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"w" * 100)
    usual = identity.derive(Args)
    (tmp_path / "loop.safetensors").symlink_to("loop.safetensors")
    assert identity.derive(Args) == usual
    with open(tmp_path / "config.json", "wb") as file:
        file.truncate(3 << 30)
    with pytest.raises(identity.UnknownIdentity, match="config.json: larger than"):
        identity.derive(Args)
