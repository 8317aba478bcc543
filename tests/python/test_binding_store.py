# SPDX-License-Identifier: Apache-2.0
"""Stores, namespaces, single objects and configurations of the extension module."""

import ctypes
import errno
import json
import os
import pathlib
import pickle
import types
from collections.abc import Iterator
from typing import Any

import numpy
import pytest

import kvcellar
from binding import PAGE_BYTES, Rig, Tensor, fault, mem, rig


@pytest.fixture
def one() -> Iterator[Rig]:
    with rig() as it:
        yield it


SLOT_BYTES = 4096  # of pages of PAGE_BYTES


# ---------------------------------------------------------------- configurations

OPTIONS = {"storage_dirs": ["/a", "/b"], "use_direct_io": False, "get_timeout_ms": 1234,
           "identity": "w\u00e9ights", "plugin": {"posix": {"active": True, "use_uring": "true"}}}
TOML = """
storage_dirs = ["/a", "/b"]
use_direct_io = false
get_timeout_ms = 1234
identity = "w\u00e9ights"
[plugin.posix]
active = true
use_uring = "true"
"""
YAML = """
storage_dirs: [/a, /b]
use_direct_io: false
get_timeout_ms: 1234
identity: "w\u00e9ights"
plugin:
  posix:
    active: true
    use_uring: "true"
"""


def test_all_forms_of_a_configuration_are_the_same(folder: str) -> None:
    forms: list[Any] = [OPTIONS, types.MappingProxyType(OPTIONS), json.dumps(OPTIONS), TOML, YAML]
    for name, text in (("c.toml", TOML), ("c.json", json.dumps(OPTIONS)), ("c.yaml", YAML)):
        path = pathlib.Path(folder, name)
        path.write_text(text, encoding="utf-8")
        forms.append(f"@{path}")
    described = []
    for form in forms:
        options = json.loads(kvcellar.config_describe(form, json=True))["options"]
        described.append({name: option["value"] for name, option in options.items()})
    assert described[0]["storage_dirs"] == ["/a", "/b"]
    assert described[0]["get_timeout_ms"] == 1234
    assert described[0]["identity"] == "w\u00e9ights"
    for other in described[1:]:
        assert other == described[0]


def test_paths_may_be_path_objects(folder: str) -> None:
    with kvcellar.Store({"storage_dirs": [pathlib.Path(folder)],
                         "plugin": {"posix": {"active": True}}}) as store:
        assert [root["path"] for root in store.usage()] == [os.path.realpath(folder)]


BAD_CONFIGS = [
    ({"nosuchkey": 1}, "nosuchkey"),
    ({"get_timeout_ms": "soon"}, "get_timeout_ms"),
    ({"storage_dirs": [1, 2]}, "storage_dirs"),
    ({"plugin": {"posix": {"use_urin": "true"}}}, "plugin.posix.use_urin.*use_uring"),
    ({"plugin": {"mem": {"active": True}}, "l3_cleaner_high_watermark": 80.0,
      "l3_cleaner_low_watermark": 99.0}, "watermark"),
    ("this is = = no toml", "config"),
    ("{", "config"),
    ("[plugin", "config"),
    ({"identity": {1, 2}}, "config: .*set"),
    ({"identity": float("nan")}, "config: .*JSON"),
    ({("a", "b"): 1}, "config: keys must be"),
    ({"identity": "\ud800"}, "config"),
    ("identity = '\ud800'", "config: .*surrogates"),
    ("identity = 'a\0b'", "config"),
]


@pytest.mark.parametrize(("config", "text"), BAD_CONFIGS)
def test_bad_configurations(config: Any, text: str) -> None:
    for call in (kvcellar.Store, kvcellar.config_check, kvcellar.config_describe):
        if call is kvcellar.config_describe and "watermark" in text:
            continue  # it shows also what a store would refuse
        with pytest.raises(kvcellar.ConfigError, match=text) as caught:
            call(config)
        assert caught.value.errno == errno.EINVAL
        assert isinstance(caught.value, (OSError, ValueError))
        assert caught.value.strerror


def test_a_configuration_in_a_circle() -> None:
    circle: dict[str, Any] = {}
    circle["plugin"] = circle
    with pytest.raises(kvcellar.ConfigError, match="[Cc]ircular"):
        kvcellar.Store(circle)
    deep: dict[str, Any] = {}
    for _ in range(100000):
        deep = {"plugin": deep}
    with pytest.raises(kvcellar.ConfigError, match="recursion"):
        kvcellar.config_check(deep)


@pytest.mark.parametrize("config", [5, 1.5, True, b"bytes", ["list"], object()])
def test_what_is_no_configuration(config: Any) -> None:
    for call in (kvcellar.Store, kvcellar.config_check, kvcellar.config_describe,
                 kvcellar.plugins):
        with pytest.raises(TypeError, match="config: a dict, a str or None expected, not "):
            call(config)


def test_files_that_are_not_there() -> None:
    with pytest.raises(kvcellar.Error, match="/no/such/file.toml") as caught:
        kvcellar.Store("@/no/such/file.toml")
    assert caught.value.errno == errno.ENOENT
    assert not isinstance(caught.value, ValueError)


def test_no_usable_plugin() -> None:
    with pytest.raises(kvcellar.Error, match="nosuch"):
        kvcellar.Store({"plugin": {"nosuch": {"active": True}}})
    with pytest.raises(kvcellar.Error) as caught:
        kvcellar.Store({"plugin": {"obj": {"active": True}}})
    assert caught.value.errno == errno.ENODEV


def test_secrets_are_not_shown() -> None:
    secret = "s3cr3t-" + "x" * 20
    config = {"plugin": {"obj": {"active": True, "bucket": "b", "secrete_key": secret}}}
    assert secret not in kvcellar.config_describe(config)
    assert secret not in kvcellar.config_describe(config, json=True)
    with pytest.raises(kvcellar.Error) as caught:
        kvcellar.Store({**config, "nosuchkey": secret})
    assert secret not in str(caught.value)


def test_what_the_library_tells_about_options() -> None:
    assert "get_timeout_ms" in kvcellar.config_options()
    assert "get_timeout_ms" in json.dumps(json.loads(kvcellar.config_options("json")))
    assert kvcellar.config_options(format="markdown").count("|") > 100
    assert "get_timeout_ms" in kvcellar.config_sample()
    kvcellar.config_check(kvcellar.config_sample())
    kvcellar.config_check()
    assert "get_timeout_ms" in kvcellar.config_describe()
    with pytest.raises(kvcellar.ConfigError, match="format = 'xml': one of text, json, markdown"):
        kvcellar.config_options("xml")


def test_plugins() -> None:
    plugins = {plugin["name"]: plugin for plugin in kvcellar.plugins()}
    for name in ("posix", "mem", "fault"):
        assert plugins[name]["status"] == 0
        assert os.path.exists(plugins[name]["path"])
        assert plugins[name]["summary"] and plugins[name]["version"]
    missing = [plugin for plugin in plugins.values() if plugin["status"]]
    assert all(plugin["reason"] for plugin in missing)
    assert kvcellar.plugins({"plugin_dir": "/no/such/folder"})


# ---------------------------------------------------------------- stores


def test_a_store_on_disk_keeps_its_pages(folder: str) -> None:
    config = {"storage_dirs": [folder], "plugin": {"posix": {"active": True}}}
    with rig(config) as it:
        it.pool.set(["a"], [0])
    with rig(config) as it:
        it.pages.fill(3, 0)
        assert it.pool.get(["a"], [3]).ok == [True]
        assert it.pages[3] == bytes([1]) * PAGE_BYTES
        assert it.store.verify()["ok"] == 1
    with pytest.raises(kvcellar.Error) as caught:
        kvcellar.Store({**config, "storage_dirs": [folder + "/a/b/c"]})
    assert caught.value.errno == errno.ENOENT


def test_read_only(folder: str) -> None:
    config = {"storage_dirs": [folder], "plugin": {"posix": {"active": True}}}
    with rig(config) as it:
        it.pool.set(["a"], [0])
    with kvcellar.Store(config, read_only=True, selftest=False) as store:
        pool = it.pages.pool(store.namespace("model", identity="test"))
        assert pool.get(["a"], [1]).ok == [True]
        refused = pool.set(["b"], [0])
        assert (refused.statuses, refused.causes) == (["denied"], ["read-only"])
        with pytest.raises(kvcellar.Error) as caught:
            store.selftest()
        assert caught.value.errno == errno.EROFS


def test_what_a_store_tells(one: Rig) -> None:
    one.pool.set(["a", "b"], [0, 1])
    one.pool.get(["a", "x"], [2, 3])
    stats = one.store.stats()
    got = stats["operations"]["get"]
    assert (got["calls"], got["pages"], got["bytes"]) == (1, 2, PAGE_BYTES)
    assert (got["statuses"]["ok"], got["statuses"]["miss"], got["causes"]["absent"]) == (1, 1, 1)
    assert sum(got["latency_us"]) == 1
    assert stats["removed_corrupt"] == 0
    assert json.loads(one.store.stats_text("json"))
    assert "kvcellar_" in one.store.stats_text("prometheus")
    assert "get" in one.store.stats_text()
    assert "mem" in one.store.describe()
    assert json.loads(one.store.describe("json"))
    assert one.store.metrics().startswith("# HELP kvcellar_")
    root, = one.store.usage(recount=True)
    assert root["own_objects"] == 2
    assert root["state"] == "ok"
    assert one.namespace.usage() == (root["own_bytes"], 2)
    one.store.selftest()
    assert repr(one.store) == "<kvcellar.Store>"
    with pytest.raises(kvcellar.ConfigError, match="one of text, json expected"):
        one.store.describe("prometheus")


def test_space_by_namespace(one: Rig) -> None:
    other = one.store.namespace("other", tenant="team")
    one.pool.set(["a", "b"], [0, 1])
    other.put("side", "k", b"data")
    found = {space["namespace"]: space for space in one.store.usage_namespaces()}
    assert set(found) == {one.namespace.id, other.id}
    mine, theirs = found[one.namespace.id], found[other.id]
    assert set(mine) == {"root", "namespace", "model", "tenant", "live_bytes", "allocated_bytes",
                         "objects", "share_bytes", "pinned"}
    assert (mine["objects"], theirs["objects"]) == (2, 1)
    assert (theirs["model"], theirs["tenant"]) == ("other", "team")
    assert mine["tenant"] is None
    assert (mine["live_bytes"], 2) == one.namespace.usage()
    assert (mine["pinned"], mine["share_bytes"]) == (False, 0)
    # In memory nothing is evicted.
    for call in (lambda: one.store.pin(other.id), lambda: one.store.clean(to_bytes=0)):
        with pytest.raises(kvcellar.Error) as caught:
            call()
        assert caught.value.errno == errno.ENOTSUP


def test_pin_and_clean(tmp_path: pathlib.Path) -> None:
    # Without a capacity nothing of a disk that others fill goes for a percentage.
    config = {"storage_dirs": [str(tmp_path)], "storage_layout": "files", "capacity": "1GiB"}
    with kvcellar.Store(config) as store:
        kept = store.namespace("kept", identity="test")
        rest = store.namespace("rest", identity="test")
        for key in ("a", "b", "c"):
            kept.put("side", key, b"x" * 100)
            rest.put("side", key, b"x" * 100)
        store.pin(kept.id)
        assert {space["namespace"]: space["pinned"] for space in store.usage_namespaces()} == {
            kept.id: True, rest.id: False}
        plan = store.clean(to_bytes=0, dry_run=True)
        assert (plan["objects"], plan["groups"], plan["failed"]) == (3, 3, 0)
        assert rest.exists("side", "a") == 100
        done = store.clean(to_bytes=0)
        assert done == {**plan, "left_bytes": done["left_bytes"]}
        assert done["left_bytes"] == kept.usage()[0]
        assert rest.exists("side", "a") is None
        store.pin(kept.id, on=False)
        assert store.clean(to_percent=0.0)["objects"] == 3
        with pytest.raises(kvcellar.ConfigError, match="to_percent"):
            store.clean(to_percent=101.0)
        with pytest.raises(TypeError, match="one of to_percent and to_bytes"):
            store.clean()
        with pytest.raises(TypeError, match="one of to_percent and to_bytes"):
            store.clean(to_percent=1.0, to_bytes=1)
        with pytest.raises(TypeError):
            store.clean(to_percent="half")  # type: ignore[arg-type]
        with pytest.raises(kvcellar.Error):
            store.pin("no id")


def test_list_verify_clear(one: Rig) -> None:
    other = one.store.namespace("other", identity="test")
    one.pool.set([f"key-{i}" for i in range(600)], [i % 8 for i in range(600)])
    other.put("side", b"\xff\xfe", b"data")
    listed = one.store.list()
    assert len(listed) == 601
    assert {entry["pool"] for entry in one.store.list(one.namespace.id)} == {"kv"}
    assert one.store.list(other.id)[0]["namespace"] == other.id
    seen = []
    counts = one.store.verify(callback=lambda *values: seen.append(values))
    assert (counts["objects"], counts["ok"], counts["corrupt"], len(seen)) == (601, 601, 0, 601)
    assert seen[0][1:] == ("ok", "none", 1, 601)
    assert sorted(entry[0]["name"] for entry in seen) == sorted(e["name"] for e in listed)
    dry = one.namespace.clear(dry_run=True)
    assert (dry["objects"], len(one.store.list())) == (600, 601)
    assert one.store.clear(one.namespace.id) == dry
    assert [entry["namespace"] for entry in one.store.list()] == [other.id]
    with pytest.raises(kvcellar.Error) as caught:
        one.store.clear("other-0123456789abcdef")
    assert caught.value.errno == errno.ENOENT
    with pytest.raises(kvcellar.ConfigError, match="no namespace id"):
        one.store.clear("no-such-namespace")
    with pytest.raises(TypeError, match="namespace: a str expected, not NoneType"):
        one.store.clear(None)


def test_verify_passes_on_what_the_callback_raises(one: Rig) -> None:
    one.pool.set(["a", "b"], [0, 1])
    seen = []

    def callback(*values: Any) -> None:
        seen.append(values)
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        one.store.verify(callback=callback)
    assert len(seen) == 1
    with pytest.raises(TypeError, match="callback: a callable or None expected"):
        one.store.verify(callback=5)
    assert one.store.verify()["ok"] == 2


def test_a_callback_may_use_the_store_but_not_close_it(one: Rig) -> None:
    one.pool.set(["a"], [0])
    errors = []

    def callback(*values: Any) -> None:
        assert one.pool.exists(["a"]).ok == [True]
        try:
            one.namespace.close()
            one.store.close()
        except kvcellar.Error as error:
            errors.append(error.errno)

    one.store.verify(callback=callback)
    assert errors == [errno.EBUSY]
    assert not one.store.closed
    assert one.namespace.closed


@pytest.mark.parametrize("layout", ("packed", "files"))
def test_corrupt_objects_are_found_and_removed(folder: str, layout: str) -> None:
    """Pages lie in slots or are files; other objects are files in either layout."""
    with rig({"storage_dirs": [folder], "storage_layout": layout, "capacity": "64MiB"}) as it:
        it.pool.set(["a", "b"], [0, 1])
        it.namespace.put("side", "c", b"x" * 100)
        for place in (*it.pool.where("a"), *it.namespace.where("side", "c")):
            path, _, slot = place["path"].partition("@")
            with open(os.path.join(place["root"], path), "r+b") as file:
                file.seek(int(slot or 0) * SLOT_BYTES)
                file.write(b"Z")
        assert it.store.verify()["corrupt"] == 2
        assert it.pool.get(["a", "b"], [2, 3]).statuses == ["corrupt", "ok"]
        with pytest.raises(kvcellar.Error) as caught:
            it.namespace.get("side", "c")
        assert caught.value.errno == errno.EBADMSG
        assert it.namespace.get("side", "c") is None
        counts = it.store.verify(remove=True)
        assert (counts["ok"], counts["corrupt"]) == (1, 0)


def test_object_stat(one: Rig) -> None:
    one.namespace.put("side", "k", b"x" * 100)
    place, = one.namespace.where("side", "k")
    detail = one.store.object_stat(place["root"], place["path"])
    assert (detail["kind"], detail["payload_bytes"], detail["part_bytes"]) == ("object", 100, [100])
    assert detail["writer"].startswith("kvcellar ")
    with pytest.raises(kvcellar.Error) as caught:
        one.store.object_stat(place["root"], "no/such/object")
    assert caught.value.errno == errno.ENOENT
    for path in ("../x", "/etc/passwd"):
        with pytest.raises(kvcellar.Error):
            one.store.object_stat(place["root"], path)


def test_registered_memory(one: Rig) -> None:
    before = one.store.stats()["host_registrations"]
    with one.store.register_memory(one.pages.address, len(one.pages.memory)) as region:
        assert one.store.stats()["host_registrations"] == before + 1
        assert one.pool.set(["a"], [0]).ok == [True]
        with pytest.raises(kvcellar.Error) as caught:
            one.store.register_memory(one.pages.address + 8, len(one.pages.memory))
        assert caught.value.errno == errno.EEXIST
    assert region.closed
    assert one.store.stats()["host_registrations"] == before
    region.close()
    for arguments in ((0, 0), (1, 0), (-1, 5), (2**64, 5)):
        with pytest.raises(kvcellar.ConfigError):
            one.store.register_memory(*arguments)
    with pytest.raises(kvcellar.ConfigError, match="kind = 'tape': one of host, cuda"):
        one.store.register_memory(1, 1, kind="tape")
    with pytest.raises(kvcellar.Error):
        one.store.register_memory(1 << 40, 4096, kind="cuda", device=1)


# ---------------------------------------------------------------- namespaces


def test_namespaces_are_told_apart(one: Rig) -> None:
    base = {"model_id": "org/model", "identity": "1", "tenant": "t", "dtype": "bfloat16"}
    spaces = [one.store.namespace(**base), one.store.namespace(**{**base, "identity": "2"}),
              one.store.namespace(**{**base, "tenant": ""}),
              one.store.namespace(**{**base, "dtype": "fp8_e4m3"}),
              one.store.namespace(**base, page_tokens=32), one.store.namespace(**base, is_mla=True),
              one.store.namespace(**base, tp_size=2), one.store.namespace()]
    assert len({space.id for space in spaces}) == len(spaces)
    assert one.store.namespace(**base).id == spaces[0].id
    assert one.store.namespace(**base, tp_size=2, tp_rank=1).id == spaces[6].id
    spaces[0].put("x", "k", b"1")
    assert spaces[1].get("x", "k") is None
    assert repr(spaces[0]) == f"<kvcellar.Namespace '{spaces[0].id}'>"


def test_only_the_writer_stores_replicated_pages() -> None:
    for writer, options in ((True, {}), (False, {"tp_rank": 1}), (False, {"is_writer": False}),
                            (True, {"tp_rank": 1, "is_writer": True})):
        with rig(is_mla=True, tp_size=2, **options) as it:
            assert it.pool.set(["a"], [0]).causes == ["none" if writer else "not-writer"]
            assert it.pool.exists(["a"]).ok == [writer]
            for pool in (it.pages.pool(it.namespace, "mamba"),
                         it.pages.pool(it.namespace, "swa", per_rank=True)):
                assert pool.set(["a"], [0]).causes == ["none"]


@pytest.mark.parametrize(("arguments", "error", "text"), [
    ({"page_tokens": 0}, kvcellar.ConfigError, "page_tokens"),
    ({"page_tokens": -1}, kvcellar.ConfigError, "page_tokens = -1"),
    ({"page_tokens": "64"}, TypeError, "page_tokens: an int expected, not str"),
    ({"tp_size": 2, "tp_rank": 2}, kvcellar.ConfigError, "tp_rank"),
    ({"tp_size": 2, "tp_lcm_size": 3}, kvcellar.ConfigError, "tp_lcm_size"),
    ({"model_id": 5}, TypeError, "model_id: a str expected, not int"),
    ({"model_id": "a\0b"}, kvcellar.ConfigError, "model_id has a NUL"),
    ({"dtype": "\udc80"}, kvcellar.ConfigError, "dtype: .*surrogates"),
    ({"is_mla": 1}, TypeError, "is_mla: a bool expected"),
    ({"is_writer": "no"}, TypeError, "is_writer: a bool or None expected"),
    ({"rank": 0}, TypeError, "unexpected keyword argument 'rank'"),
])
def test_wrong_namespaces(one: Rig, arguments: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        one.store.namespace(**arguments)


# ---------------------------------------------------------------- single objects


@pytest.mark.parametrize("size", [0, 1, 100, 65535, 65536, 65537, 1 << 20])
def test_objects_of_any_size(one: Rig, size: int) -> None:
    data = numpy.random.default_rng(size).bytes(size)
    space = one.namespace
    assert space.get("side", "k") is None
    assert space.exists("side", "k") is None
    assert space.put("side", "k", data) is True
    assert space.put("side", "k", bytes(size)) is False
    assert space.exists("side", "k") == size
    assert space.get("side", "k") == data
    target = bytearray(size + 10)
    assert space.get_into("side", "k", target) == size
    assert target == data + bytes(10)
    assert space.put("side", "k", bytes(size), overwrite=True) is True
    assert space.get("side", "k") == bytes(size)
    assert space.put("side", "k", bytes(size + 1)) is True
    assert space.get("side", "k") == bytes(size + 1)
    with pytest.raises(kvcellar.Error) as caught:
        space.get_into("side", "k", bytearray(size))
    assert caught.value.errno == errno.ENOBUFS
    assert space.get("other", "k") is None
    assert space.remove("side", "k") is True
    assert space.remove("side", "k") is False
    assert space.get_into("side", "k", target) is None


def test_objects_from_any_memory(one: Rig) -> None:
    numbers = numpy.arange(12, dtype=numpy.float32).reshape(3, 4)
    raw = (ctypes.c_uint16 * 24)(*range(24))
    space = one.namespace
    for data in (numbers, memoryview(numbers), numbers.tobytes(), Tensor(numbers, dtype="x")):
        assert space.put("m", "k", data, overwrite=True)
        assert space.get("m", "k") == numbers.tobytes()
    space.put("m", "k2", (ctypes.addressof(raw), 48))
    assert space.get("m", "k2") == bytes(raw)
    back = numpy.zeros_like(numbers)
    assert space.get_into("m", "k", back) == 48
    assert (back == numbers).all()
    for bad, error in ((numbers[:, ::2], kvcellar.ConfigError), ("text", TypeError),
                       (None, TypeError), (Tensor(numbers, device="cuda"), kvcellar.ConfigError)):
        with pytest.raises(error, match="data"):
            space.put("m", "bad", bad)
    for bad in (b"bytes", memoryview(b"bytes")):
        with pytest.raises(kvcellar.ConfigError, match="buffer"):
            space.get_into("m", "k", bad)
    assert space.get("m", "bad") is None


def test_many_objects(one: Rig) -> None:
    space = one.namespace
    keys = [f"key-{i}" for i in range(100)]
    data = [bytes([i]) * (i * 10) for i in range(100)]
    assert space.put_many("side", keys, data) == [0] * 100
    assert space.put_many("side", keys, data) == [0] * 100
    targets = [bytearray(i * 10) for i in range(100)]
    assert space.get_many("side", keys, targets) == [0] * 100
    assert [bytes(target) for target in targets] == data
    found = space.get_many("side", ["key-5", "key-6", "no", "key-7"],
                           [bytearray(49), bytearray(61), bytearray(8), bytearray(70)])
    assert found == [errno.ENOBUFS, errno.EMSGSIZE, errno.ENOENT, 0]
    assert space.exists_many("side", ["key-5", "no", b"key-6"]) == [True, False, True]
    assert (space.put_many("side", [], []), space.get_many("side", [], []),
            space.exists_many("side", [])) == ([], [], [])
    assert space.put_many("side", ["key-5"], [b"y" * 50], overwrite=True) == [0]
    assert space.get("side", "key-5") == b"y" * 50
    with pytest.raises(kvcellar.ConfigError, match="buffers has 1 entries, keys has 2"):
        space.put_many("side", ["a", "b"], [b"1"])
    with pytest.raises(kvcellar.ConfigError, match=r"buffers\[1\].*writable"):
        space.get_many("side", ["a", "b"], [bytearray(1), b"1"])
    with pytest.raises(TypeError, match=r"keys\[1\]"):
        space.put_many("side", ["a", 1], [b"1", b"2"])
    with pytest.raises(TypeError, match="pool_name: a str expected, not NoneType"):
        space.get_many(None, ["a"], [bytearray(1)])
    assert space.put_many("NO NAME", ["a"], [b"1"]) == [errno.EINVAL]


def test_many_objects_have_one_limit_of_time() -> None:
    with rig(fault("read stall_ms=60000 name=*side*")) as it:
        keys = ["a", "b", "c"]
        assert it.namespace.put_many("side", keys, [b"1"] * 3) == [0, 0, 0]
        codes = it.namespace.get_many("side", keys, [bytearray(1) for _ in keys], timeout_ms=200)
        assert codes == [errno.ETIMEDOUT] * 3
        assert it.store.stats()["operations"]["get"]["statuses"]["timeout"] < 3


@pytest.mark.parametrize(("rule", "code"), [("write error=ENOSPC name=*side*", errno.ENOSPC),
                                            ("write error=EACCES name=*side*", errno.EACCES),
                                            ("write error=EIO name=*side*", errno.EIO)])
def test_errors_of_storage(rule: str, code: int) -> None:
    with rig(fault(rule)) as it:
        with pytest.raises(kvcellar.Error, match="side") as caught:
            it.namespace.put("side", "k", b"data")
        assert caught.value.errno == code
        assert type(caught.value) is kvcellar.Error
        assert it.namespace.put_many("side", ["k"], [b"data"]) == [code]


# ---------------------------------------------------------------- types


def test_types_are_final_and_their_objects_are_not_made_by_hand(one: Rig) -> None:
    for kind in (kvcellar.Namespace, kvcellar.Pool, kvcellar.Region, kvcellar.Result,
                 kvcellar.Batch):
        with pytest.raises(TypeError, match="cannot create"):
            kind()
        with pytest.raises(TypeError):
            object.__new__(kind)
    for kind in (kvcellar.Store, kvcellar.Transfer, kvcellar.Pool):
        with pytest.raises(TypeError, match="not an acceptable base"):
            type("Sub", (kind,), {})
        with pytest.raises(TypeError, match="immutable"):
            kind.close = None
    for value in (one.store, one.namespace, one.pool, one.pool.exists([]),
                  kvcellar.Transfer("exists", one.pool, [])):
        with pytest.raises(TypeError, match="pickle"):
            pickle.dumps(value)
    error = pickle.loads(pickle.dumps(kvcellar.ConfigError(errno.EINVAL, "text")))
    assert (type(error), error.errno, error.strerror) == (kvcellar.ConfigError, 22, "text")


def test_methods_of_other_types_are_refused(one: Rig) -> None:
    for method, other in ((kvcellar.Pool.get, one.namespace), (kvcellar.Store.run, one.pool),
                          (kvcellar.Namespace.put, one.store), (kvcellar.Store.close, object()),
                          (kvcellar.Batch.wait, one.pool)):
        with pytest.raises(TypeError):
            method(other, [])


def test_errors_of_arguments(one: Rig) -> None:
    for call in (lambda: one.pool.get(), lambda: one.pool.get(["a"], [0], 1),
                 lambda: one.pool.get(["a"], keys=["b"]), lambda: one.pool.get(key="a"),
                 lambda: one.store.close(1), lambda: one.store.close(wait=True),
                 lambda: kvcellar.Store(1, 2), lambda: kvcellar.Store(nosuch=1),
                 lambda: one.namespace.get("x"), lambda: one.pool.info(1),
                 lambda: one.pool.exists(["a"], timeout_ms="1"),
                 lambda: one.pool.exists(["a"], stop_at_miss=1), lambda: one.store.run()):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(kvcellar.ConfigError, match="timeout_ms = -1: not in 0 to 4294967295"):
        one.pool.exists(["a"], timeout_ms=-1)
