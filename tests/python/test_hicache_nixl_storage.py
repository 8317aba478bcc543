# SPDX-License-Identifier: Apache-2.0
"""What the test list of SGLang's NIXL backend asks for, asked of kvcellar's SGLang adapter.

The list is the section "Test Coverage" of the backend's README; the names of its tests are kept.
Needs the packages kvcellar, torch and sglang, no GPU and no model. In this folder:

    PYTHONPATH=. python -m pytest test_hicache_nixl_storage.py -o asyncio_mode=strict
    PYTHONPATH=. python -m pytest test_hicache_nixl_storage.py -v -o asyncio_mode=strict
    PYTHONPATH=. python -m pytest test_hicache_nixl_storage.py -v -k test_single_set_get \
        -o asyncio_mode=strict
    python test_hicache_nixl_storage.py
"""
import contextlib
import ctypes
import hashlib
import importlib.util
import json
import logging
import os
import shutil
import stat
import tempfile
import types
import unittest
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

if importlib.util.find_spec("sgl_kernel") is None:
    # SGLang's own choice on a machine without a GPU needs that package; host pools do not.
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "0")

import kvcellar
from kvcellar.sglang import KvCellarStorage

try:
    import torch
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
    from sglang.srt.mem_cache.pool_host import base as pool_host_base
    from sglang.srt.mem_cache.pool_host.mha import get_mha_host_pool_cls
    from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
except ImportError as error:
    raise unittest.SkipTest(f"needs torch and sglang: {error}") from error

# What SGLang leaves free of host pools; those here have less than 1 MiB.
pool_host_base.HICACHE_HOST_MEMORY_RESERVE_BYTES = 1 << 28

PAGE_TOKENS = 16
TRAILER_BYTES = 4096
ENV_PREFIXES = ("KVCELLAR_", "SGLANG_HICACHE_NIXL_", "AWS_")
ENV_DIRS = "SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR"
ENV_PLUGIN = "SGLANG_HICACHE_NIXL_BACKEND_PLUGIN"
ENV_DIRECT = "SGLANG_HICACHE_NIXL_USE_DIRECT_IO"


def storage_config(extra: Mapping[str, Any] | None = None, **fields: Any) -> HiCacheStorageConfig:
    """What SGLang hands to a storage backend: rank 0 of 1, not MLA, unless fields say otherwise."""
    values: dict[str, Any] = {
        "tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "attn_cp_rank": 0,
        "attn_cp_size": 1, "is_mla_model": False, "enable_storage_metrics": False,
        "is_page_first_layout": True, "model_name": "org/model", "extra_config": dict(extra or {}),
    }
    values.update(fields)
    return HiCacheStorageConfig(**values)


def mha_pool(layout: str = "page_first") -> Any:
    """SGLang's host pool of an MHA model: 128 tokens or more, K and V of 12 KiB per page."""
    device = MHATokenToKVPool(128, PAGE_TOKENS, torch.bfloat16, 2, 64, 3, "cpu", False)
    info = device.get_device_pool_infos()[0].buffer_info
    return get_mha_host_pool_cls(info)(
        info, 2.0, 0, PAGE_TOKENS, layout, pin_memory=False, device_capacity_tokens=device.size,
        start_layer=device.start_layer, end_layer=device.end_layer)


def mla_pool(layout: str = "page_first", lora: int = 192) -> Any:
    """SGLang's host pool of an MLA model: one interleaved part; 24 KiB per page with lora 192."""
    device = MLATokenToKVPool(128, PAGE_TOKENS, torch.bfloat16, lora, 64, 3, "cpu", False)
    info = device.get_device_pool_infos()[0].buffer_info
    return MLATokenToKVPoolHost(
        info, 2.0, 0, PAGE_TOKENS, layout, pin_memory=False,
        override_kv_cache_dim=device.kv_cache_dim, device_capacity_tokens=device.size,
        start_layer=device.start_layer, end_layer=device.end_layer,
        target_layer_num=device.layer_num)


def page_keys(count: int, first: int = 0) -> list[str]:
    """Keys as SGLang makes them: 64 hex digits."""
    return [hashlib.sha256(b"page %d" % i).hexdigest() for i in range(first, first + count)]


def randomize(pool: Any, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    raw = pool.kv_buffer.view(torch.uint8)
    raw.copy_(torch.randint(0, 256, raw.shape, generator=generator, dtype=torch.uint8))


def snapshot(pool: Any, indices: "torch.Tensor") -> list["torch.Tensor"]:
    """The bytes of the pages whose tokens are given, taken by SGLang's own code."""
    return [pool.get_data_page(int(first), flat=True).view(torch.uint8).clone()
            for first in indices[::PAGE_TOKENS]]


def same(left: list["torch.Tensor"], right: list["torch.Tensor"]) -> bool:
    return len(left) == len(right) and all(map(torch.equal, left, right))


def raw_bytes(tensor: "torch.Tensor") -> bytes:
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return ctypes.string_at(flat.data_ptr(), flat.numel())


def hicachenixl_path(name: str, dirs: list[str]) -> Path:
    """Where HiCacheNixl puts a file of this name, by the rule in its module nixl_routing."""
    value = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big")
    return Path(dirs[(value >> 16) % len(dirs)], f"{value & 0xff:02x}", name)


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@contextlib.contextmanager
def no_permission(folder: Path) -> Iterator[None]:
    """Nobody may enter or change the folder; root, whom no mode stops, becomes another user."""
    root = os.geteuid() == 0
    folder.chmod(0o000)
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o700)


class Case(unittest.TestCase):
    """A test with a folder of its own, a clean environment, and backends closed at its end.

    Of kvcellar's own naming there are two storage layouts; HiCacheNixl's has files.
    """

    naming = "kvcellar"
    layout = "packed"

    def setUp(self) -> None:
        clean = {name: value for name, value in os.environ.items()
                 if not name.startswith(ENV_PREFIXES) or name == "KVCELLAR_PLUGIN_DIR"}
        patch = mock.patch.dict(os.environ, clean, clear=True)
        patch.start()
        self.addCleanup(patch.stop)
        self.folder = Path(tempfile.mkdtemp(prefix="kvcellar-test-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.root = self.folder / "store"
        self.root.mkdir()

    def open(self, extra: Mapping[str, Any] | None = None, **fields: Any) -> KvCellarStorage:
        """A backend on self.root with `extra` as its --hicache-storage-backend-extra-config."""
        options: dict[str, Any] = {
            "naming": self.naming, "l3_cleaner_enabled": False, "identity": "none",
            "capacity": "64MiB"}
        if ENV_DIRS not in os.environ:
            options["storage_dirs"] = [str(self.root)]
        options.update(extra or {})
        if options["naming"] == "kvcellar":
            options.setdefault("storage_layout", self.layout)
        backend = KvCellarStorage(storage_config(options, **fields), {})
        self.addCleanup(backend.close)
        return backend

    def open_pages(self, pool: Any, extra: Mapping[str, Any] | None = None,
                   **fields: Any) -> KvCellarStorage:
        """A backend with its pool registered in SGLang's order."""
        backend = self.open(extra, **fields)
        backend.register_mem_pool_host(pool)
        backend.on_host_pools_registered()
        return backend

    def files(self, root: Path | None = None) -> list[Path]:
        """The stored files, without housekeeping."""
        return sorted(path for path in (root or self.root).rglob("*")
                      if path.is_file() and ".kvcellar" not in path.parts
                      and path.name != "namespace.json")

    def names(self) -> list[str]:
        """The names of the stored objects, in whichever layout."""
        with kvcellar.Store({"storage_dirs": [str(self.root)], "naming": self.naming},
                            read_only=True) as store:
            return sorted(entry["name"] for entry in store.list())

    def lose(self, key: str) -> None:
        """The first object of a page goes: its file is removed, or its slot found damaged."""
        if self.layout == "files" or self.naming == "nixl":
            [path for path in self.files() if path.name.startswith(key)][0].unlink()
            return
        with kvcellar.Store({"storage_dirs": [str(self.root)]}) as store:
            (entry,) = [entry for entry in store.list() if entry["name"].startswith(key)]
            path, slot = entry["path"].split("@")
            slot_bytes = int(Path(path).parent.name.removeprefix("slots-"))
            with open(self.root / path, "r+b") as file:
                file.seek(int(slot) * slot_bytes)
                first = file.read(1)[0]
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([first ^ 1]))
            self.assertEqual(store.verify(remove=True)["corrupt"], 1)


class TestTensors(Case):
    """HiCache integration: the tensor API, one object per tensor."""

    def test_single_set_get(self) -> None:
        backend = self.open()
        value = torch.randn(10, 10)
        target = torch.zeros_like(value)
        self.assertTrue(backend.set("test_key", value))
        got = backend.get("test_key", target)
        self.assertIs(got, target)
        self.assertTrue(torch.equal(value, target))
        self.assertTrue(backend.exists("test_key"))

    def test_single_set_get_by_address(self) -> None:
        """Instead of tensors: an address and a size in bytes."""
        backend = self.open()
        value = torch.randn(10, 10)
        target = torch.zeros_like(value)
        size = value.numel() * value.element_size()
        self.assertTrue(backend.set("test_key", None, value.data_ptr(), size))
        backend.get("test_key", target.data_ptr(), size)
        self.assertTrue(torch.equal(value, target))

    def test_batch_set_get(self) -> None:
        backend = self.open()
        keys = ["key1", "key2", "key3"]
        values = [torch.randn(5, 5), torch.randn(3, 3), torch.randn(7, 7)]
        targets = [torch.zeros_like(value) for value in values]
        self.assertTrue(backend.batch_set(keys, values))
        got = backend.batch_get(keys, targets)
        self.assertEqual(len(got), 3)
        for value, target, result in zip(values, targets, got):
            self.assertIs(result, target)
            self.assertTrue(torch.equal(value, target))

    def test_batch_get_has_a_result_for_each_key(self) -> None:
        """A missing key costs its own page only."""
        backend = self.open()
        values = [torch.randn(4), torch.randn(4), torch.randn(4)]
        self.assertTrue(backend.batch_set(["a", "b", "c"], values))
        targets = [torch.zeros(4) for _ in range(4)]
        got = backend.batch_get(["a", "no such key", "b", "c"], targets)
        self.assertEqual([result is not None for result in got], [True, False, True, True])
        self.assertTrue(torch.equal(targets[2], values[1]))
        self.assertTrue(torch.equal(targets[3], values[2]))
        self.assertEqual(backend.batch_exists(["a", "no such key", "b"]), 1)

    def test_mixed_operations(self) -> None:
        """What single calls store batches find, and the other way round."""
        backend = self.open()
        single = torch.randn(4, 4)
        batch = [torch.randn(2, 2), torch.randn(6, 6)]
        self.assertTrue(backend.set("key1", single))
        self.assertTrue(backend.batch_set(["key2", "key3"], batch))
        targets = [torch.zeros_like(value) for value in (single, *batch)]
        got = backend.batch_get(["key1", "key2"], targets[:2])
        self.assertTrue(all(result is not None for result in got))
        self.assertIsNotNone(backend.get("key3", targets[2]))
        for value, target in zip((single, *batch), targets):
            self.assertTrue(torch.equal(value, target))
        self.assertEqual(backend.batch_exists(["key1", "key2", "key3", "key4"]), 3)

    def test_data_integrity(self) -> None:
        """All numeric types, 0 to 4 dimensions: every bit comes back, NaN and -0.0 included."""
        backend = self.open()
        dtypes = (torch.int32, torch.int64, torch.float32, torch.float64, torch.float16,
                  torch.bfloat16, torch.int8, torch.uint8, torch.int16)
        shapes = ((), (0, 3), (1,), (7,), (3, 5), (2, 3, 4), (2, 2, 3, 129))
        generator = torch.Generator().manual_seed(7)
        for dtype in dtypes:
            for shape in shapes:
                with self.subTest(dtype=dtype, shape=shape):
                    key = f"{dtype}-{'x'.join(map(str, shape))}".removeprefix("torch.")
                    value = torch.zeros(shape, dtype=dtype)
                    raw = value.reshape(-1).view(torch.uint8)
                    raw.copy_(torch.randint(0, 256, raw.shape, generator=generator,
                                            dtype=torch.uint8))
                    if dtype.is_floating_point and value.numel() > 2:
                        value.reshape(-1)[0] = float("nan")
                        value.reshape(-1)[1] = -0.0
                    target = torch.zeros_like(value)
                    self.assertTrue(backend.set(key, value))
                    self.assertIsNotNone(backend.get(key, target))
                    self.assertEqual(raw_bytes(target), raw_bytes(value))

    def test_data_integrity_of_views(self) -> None:
        """A tensor that is not contiguous is stored by its elements, not by its memory."""
        backend = self.open()
        value = torch.arange(24, dtype=torch.int64).reshape(4, 6).t()
        self.assertFalse(value.is_contiguous())
        target = torch.zeros(6, 4, dtype=torch.int64)
        self.assertTrue(backend.set("view", value))
        self.assertIsNotNone(backend.get("view", target))
        self.assertTrue(torch.equal(value, target))
        strided = torch.zeros(6, 8, dtype=torch.int64)[:, ::2]
        self.assertIs(backend.get("view", strided), strided)
        self.assertTrue(torch.equal(value, strided))

    def test_data_integrity_of_a_target_of_another_size(self) -> None:
        """Too small or too large is a miss, and no byte is written beside the target."""
        backend = self.open()
        self.assertTrue(backend.set("key", torch.ones(100)))
        for count in (1, 99, 101, 2000):
            around = torch.full((count + 2000,), 7.0)
            self.assertIsNone(backend.get("key", around[1000:1000 + count]))
            untouched = torch.cat((around[:1000], around[1000 + count:]))
            self.assertTrue(torch.equal(untouched, torch.full((2000,), 7.0)))


class TestFiles(Case):
    """File management: names, places, and what happens when the file system says no."""

    layout = "files"

    def test_a_key_keeps_its_content(self) -> None:
        """Keys are hashes of the content: what is there in the right size is not written again."""
        backend = self.open()
        first, target = torch.ones(8), torch.zeros(8)
        self.assertTrue(backend.set("key", first))
        self.assertTrue(backend.set("key", torch.full((8,), 2.0)))
        self.assertIsNotNone(backend.get("key", target))
        self.assertTrue(torch.equal(target, first))
        self.assertTrue(backend.set("key", torch.full((9,), 2.0)))
        target = torch.zeros(9)
        self.assertIsNotNone(backend.get("key", target))
        self.assertTrue(torch.equal(target, torch.full((9,), 2.0)))

    def test_basic_file_operations(self) -> None:
        backend = self.open()
        value = torch.arange(1000, dtype=torch.float32)
        self.assertTrue(backend.set("key", value))
        (path,) = self.files()
        content = path.read_bytes()
        self.assertEqual(content[:4000], raw_bytes(value))
        self.assertEqual(len(content), 4096 + TRAILER_BYTES)
        self.assertEqual(stat.S_IMODE(path.stat().st_mode), 0o600)

        foreign = path.parent / "of somebody else"
        foreign.write_text("stays")
        backend.clear()
        self.assertFalse(path.exists())
        self.assertTrue(foreign.exists())
        self.assertFalse(backend.exists("key"))
        self.assertTrue(backend.set("key", value))
        self.assertTrue(backend.exists("key"))

    def test_files_outlive_the_process(self) -> None:
        value = torch.randn(33)
        first = self.open()
        self.assertTrue(first.set("key", value))
        first.close()
        target = torch.zeros(33)
        self.assertIsNotNone(self.open().get("key", target))
        self.assertTrue(torch.equal(value, target))

    def test_a_removed_folder_is_made_again(self) -> None:
        backend = self.open()
        self.assertTrue(backend.set("key", torch.ones(8)))
        (path,) = self.files()
        shutil.rmtree(path.parent)
        self.assertFalse(backend.exists("key"))
        self.assertTrue(backend.set("key", torch.ones(8)))
        self.assertTrue(path.exists())

    def test_create_descriptors(self) -> None:
        """HiCacheNixl makes a NIXL tuple of a key and its path; here the store has the path.

        where() tells root and path of a name before anything is stored, and that is where it lies.
        """
        roots = [str(self.folder / name) for name in ("one", "two", "three")]
        for root in roots:
            os.mkdir(root)
        with kvcellar.Store({"storage_dirs": roots, "l3_cleaner_enabled": False}) as store:
            namespace = store.namespace("org/model")
            taken = set()
            for key in page_keys(24):
                (place,) = namespace.where("kv", key)
                self.assertIn(place["root"], roots)
                path = Path(place["root"], place["path"])
                self.assertFalse(path.exists())
                self.assertTrue(namespace.put("kv", key, b"12345"))
                self.assertEqual(path.read_bytes()[:5], b"12345")
                self.assertEqual(path.name, place["name"])
                taken.add(place["root"])
            self.assertEqual(taken, set(roots))

    def test_create_descriptors_of_a_pool(self) -> None:
        """A pool's descriptors: one object per page, one per part in HiCacheNixl's naming."""
        part = {"name": "k", "piece_bytes": 4096, "piece_count": 1, "page_stride_bytes": 4096}
        for naming, names in (("kvcellar", 1), ("nixl", 2)):
            root = str(self.folder / naming)
            os.mkdir(root)
            config = {"storage_dirs": [root], "naming": naming, "l3_cleaner_enabled": False}
            with kvcellar.Store(config) as store:
                pool = store.namespace("org/model").pool("kv", [part, {**part, "name": "v"}])
                places = pool.where("some-key")
                self.assertEqual(len(places), names)
                self.assertEqual({place["root"] for place in places}, {root})
                if naming == "nixl":
                    self.assertEqual([place["name"] for place in places],
                                     ["some-key_org-model_0_1_k", "some-key_org-model_0_1_v"])

    def test_error_handling_missing(self) -> None:
        backend = self.open()
        target = torch.full((4,), 5.0)
        self.assertIsNone(backend.get("nothing", target))
        self.assertEqual(backend.batch_get(["nothing", "either"], [target, target.clone()]),
                         [None, None])
        self.assertFalse(backend.exists("nothing"))
        self.assertEqual(backend.batch_exists(["nothing"]), 0)
        self.assertTrue(torch.equal(target, torch.full((4,), 5.0)))

    def test_error_handling_unwritable(self) -> None:
        """A file where the folder should be: no set, no exception; all is well once it is gone."""
        backend = self.open()
        self.assertTrue(backend.set("key", torch.ones(8)))
        (path,) = self.files()
        shutil.rmtree(path.parent)
        path.parent.write_text("in the way")
        self.assertFalse(backend.set("key", torch.ones(8)))
        self.assertFalse(backend.batch_set(["key"], [torch.ones(8)]))
        self.assertFalse(backend.exists("key"))
        self.assertIsNone(backend.get("key", torch.zeros(8)))
        path.parent.unlink()
        self.assertTrue(backend.set("key", torch.ones(8)))

    def test_error_handling_no_permission(self) -> None:
        """Denied is neither stored nor an exception, and is over as soon as permission is back."""
        backend = self.open()
        self.assertTrue(backend.set("key", torch.ones(8)))
        (path,) = self.files()
        path.unlink()
        with no_permission(path.parent):
            self.assertFalse(backend.set("key", torch.ones(8)))
            self.assertFalse(backend.exists("key"))
            self.assertIsNone(backend.get("key", torch.zeros(8)))
        self.assertTrue(backend.set("key", torch.ones(8)))
        self.assertIsNotNone(backend.get("key", torch.zeros(8)))

    def test_error_handling_corrupt(self) -> None:
        """Flipped, cut, lengthened, emptied: never a byte of it, and a new set repairs it."""
        damages = {
            "flipped": lambda raw: raw[:10] + bytes([raw[10] ^ 1]) + raw[11:],
            "cut": lambda raw: raw[:-1],
            "lengthened": lambda raw: raw + b"\0",
            "empty": lambda raw: b"",
            "trailer": lambda raw: raw[:-TRAILER_BYTES] + bytes(TRAILER_BYTES),
        }
        backend = self.open()
        for number, (name, damage) in enumerate(damages.items()):
            with self.subTest(damage=name):
                key, value = f"key-{name}", torch.full((600,), number, dtype=torch.int32)
                before = set(self.files())
                self.assertTrue(backend.batch_set([key, key + "-good"], [value, value]))
                (path,) = [path for path in set(self.files()) - before
                           if path.name.startswith(key + ".")]
                path.write_bytes(damage(path.read_bytes()))
                targets = [torch.full_like(value, -1), torch.full_like(value, -1)]
                got = backend.batch_get([key, key + "-good"], targets)
                self.assertIsNone(got[0])
                self.assertIsNotNone(got[1])
                self.assertTrue(torch.equal(targets[1], value))
                self.assertTrue(backend.set(key, value))
                self.assertIsNotNone(backend.get(key, targets[0]))
                self.assertTrue(torch.equal(targets[0], value))

    def test_error_handling_at_open(self) -> None:
        """A folder that cannot be used is refused at once, by name."""
        (self.folder / "file").write_text("")
        bad = str(self.folder / "file" / "below")
        with self.assertRaises(OSError) as caught:
            self.open({"storage_dirs": [bad]})
        self.assertIn(bad, str(caught.exception))

    def test_error_handling_of_wrong_calls(self) -> None:
        """Whatever the data path is called with, before, while and after: misses, no exception."""
        backend = self.open()
        keys, indices = page_keys(2), torch.arange(2 * PAGE_TOKENS)
        for moment in ("no pool", "registered", "closed"):
            with self.subTest(moment=moment):
                if moment == "registered":
                    backend.register_mem_pool_host(mha_pool())
                elif moment == "closed":
                    self.assertEqual(backend.batch_set_v1(keys, indices), [True, True])
                    backend.close()
                wrong = indices if moment != "registered" else indices[:-1]
                self.assertEqual(backend.batch_get_v1(keys, wrong), [False, False])
                self.assertEqual(backend.batch_set_v1(keys, wrong), [False, False])
                self.assertEqual(backend.batch_set_v1(keys, wrong + 100000), [False, False])
                self.assertEqual(backend.batch_exists(keys), 0)
                self.assertFalse(backend.set("key", object()))
                self.assertFalse(backend.set("key"))
                self.assertFalse(backend.batch_set(keys, [torch.ones(1)]))
                self.assertIsNone(backend.get("key", "text"))
                self.assertIsNone(backend.get("key"))
                self.assertEqual(backend.batch_get(keys, [torch.ones(1)]), [None, None])
        self.assertEqual(self.open_pages(mha_pool()).batch_exists(keys), 2)

    def test_error_handling_odd_keys(self) -> None:
        """Nothing leaves the folder, and keys that look alike stay apart."""
        backend = self.open()
        keys = ["../../escape", "a/b", "a%2Fb", "line\nbreak", "\N{SNOWMAN}", "x" * 300]
        for number, key in enumerate(keys):
            self.assertTrue(backend.set(key, torch.full((4,), number)))
        for number, key in enumerate(keys):
            target = torch.zeros(4, dtype=torch.int64)
            self.assertIsNotNone(backend.get(key, target))
            self.assertTrue(torch.equal(target, torch.full((4,), number)))
        self.assertEqual([path.name for path in self.folder.iterdir()], ["store"])
        self.assertEqual(len(self.files()), len(keys))


class TestRegistration(Case):
    """Memory is registered once and found to be host memory; files need no registration."""

    def test_register_memory(self) -> None:
        """A tensor's memory: its kind, live counts, overlap, and what cannot be moved."""
        tensor = torch.zeros(1 << 20, dtype=torch.uint8)
        other = torch.zeros(1 << 16, dtype=torch.uint8)
        config = {"storage_dirs": [str(self.root)], "l3_cleaner_enabled": False}
        with kvcellar.Store(config) as store:
            count = lambda: store.stats()["host_registrations"]  # noqa: E731
            self.assertEqual(count(), 0)
            first = store.register_memory(tensor.data_ptr(), tensor.numel())
            second = store.register_memory(other.data_ptr(), other.numel(), kind="host")
            self.assertEqual(count(), 2)
            with self.assertRaises(kvcellar.Error):
                store.register_memory(tensor.data_ptr() + 4096, 8192)
            with self.assertRaises(kvcellar.Error):
                store.register_memory(tensor.data_ptr(), 0)
            with self.assertRaises(kvcellar.Error):
                store.register_memory(1 << 40, 4096, kind="cuda")
            self.assertEqual(count(), 2)
            first.close()
            self.assertEqual(count(), 1)
            second.close()
            self.assertEqual(count(), 0)

    def test_register_mem_pool_host(self) -> None:
        """The pool's memory is registered, its kind is told in one line, and close() undoes it."""
        pool = mha_pool()
        backend = self.open()
        self.assertEqual(backend.store.stats()["host_registrations"], 0)
        with self.assertLogs("kvcellar", logging.INFO) as logs:
            backend.register_mem_pool_host(pool)
        text = "\n".join(logs.output)
        for fact in ("mem_pool_device_type", "is_mla_model", "tp_rank", "backup_skip",
                     "zero_copy"):
            self.assertIn(fact, text)
        self.assertRegex(text, r"mem_pool_device_type\W+cpu")
        self.assertRegex(text, r"zero_copy\W+True")
        store = backend.store
        self.assertEqual(store.stats()["host_registrations"], 1)
        left = []

        def close_store() -> None:
            left.append(store.stats()["host_registrations"])
            store.close()

        backend.store = types.SimpleNamespace(close=close_store)
        backend.close()
        self.assertEqual(left, [0])
        self.assertTrue(store.closed)
        self.assertEqual(backend.batch_exists(page_keys(1)), 0)

    def test_register_files_by_path(self) -> None:
        """No file is registered or kept open: descriptors stay the same over many transfers."""
        pool = mha_pool()
        before_open = open_descriptors()
        backend = self.open_pages(pool)
        indices = torch.arange(4 * PAGE_TOKENS)
        keys = page_keys(4)

        def transfer() -> None:
            self.assertEqual(backend.batch_set_v1(keys, indices), [True] * 4)
            self.assertEqual(backend.batch_get_v1(keys, indices), [True] * 4)
            self.assertEqual(backend.batch_get_v1(page_keys(4, 50), indices), [False] * 4)

        transfer()
        (entry,) = [entry for entry in backend.store.list() if entry["name"].startswith(keys[0])]
        detail = backend.store.object_stat(str(self.root), entry["path"])
        self.assertEqual(detail["payload_bytes"], 2 * 12288)
        queues, descriptors = backend.store.stats()["storage_registrations"], open_descriptors()
        for _ in range(20):
            transfer()
        self.assertEqual(backend.store.stats()["storage_registrations"], queues)
        self.assertEqual(open_descriptors(), descriptors)
        backend.close()
        self.assertEqual(open_descriptors(), before_open)

    def test_a_failed_registration_leaves_nothing(self) -> None:
        """Refused while it is made: raised there, nothing is left, and the store goes on."""
        backend = self.open()
        unknown = types.SimpleNamespace(layout="page_first", page_size=PAGE_TOKENS, size=128,
                                        kv_buffer=torch.zeros(1 << 16))
        with self.assertRaises(kvcellar.Error) as caught:
            backend.register_mem_pool_host(unknown)
        self.assertIn("pool kv", str(caught.exception))
        self.assertEqual(backend.store.stats()["host_registrations"], 0)
        backend.register_mem_pool_host(mha_pool())
        self.assertEqual(backend.batch_exists(page_keys(2)), 0)


class TestPages(Case):
    """Pages of SGLang's host pools: bytes, names per rank, MLA, and what exists counts."""

    def round_trip(self, pool: Any, extra: Mapping[str, Any] | None = None,
                   **fields: Any) -> KvCellarStorage:
        backend = self.open_pages(pool, extra, **fields)
        indices, keys = torch.arange(6 * PAGE_TOKENS), page_keys(6)
        randomize(pool, 3)
        want = snapshot(pool, indices)
        self.assertEqual(backend.batch_exists(keys), 0)
        self.assertEqual(backend.batch_set_v1(keys, indices), [True] * 6)
        self.assertEqual(backend.batch_exists(keys + page_keys(1, 99)), 6)
        pool.kv_buffer.zero_()
        self.assertEqual(backend.batch_get_v1(keys, indices), [True] * 6)
        self.assertTrue(same(want, snapshot(pool, indices)))
        return backend

    def test_zero_copy_layouts(self) -> None:
        """page_first and page_first_direct go without a copy by themselves, others work too."""
        for naming in ("kvcellar", "nixl"):
            for direct in (True, False):
                for layout in ("page_first", "page_first_direct", "page_head", "layer_first"):
                    for make in (mha_pool, mla_pool):
                        if make is mla_pool and layout == "page_head":
                            continue  # SGLang has no such pool
                        with self.subTest(naming=naming, direct=direct, layout=layout, pool=make):
                            folder = self.folder / f"{naming}{direct}{layout}{make.__name__}"
                            folder.mkdir()
                            self.round_trip(make(layout), {
                                "naming": naming, "use_direct_io": direct,
                                "storage_dirs": [str(folder)]}, is_mla_model=make is mla_pool)

    def test_unaligned_pages(self) -> None:
        """Pages that are no multiple of 4 KiB (18 KiB here) work under O_DIRECT all the same."""
        self.round_trip(mla_pool(lora=128), is_mla_model=True)

    def test_a_failed_page_costs_itself(self) -> None:
        pool = mha_pool()
        backend = self.round_trip(pool)
        keys, indices = page_keys(6), torch.arange(6 * PAGE_TOKENS)
        want = snapshot(pool, indices)
        self.lose(keys[2])
        pool.kv_buffer.zero_()
        self.assertEqual(backend.batch_get_v1(keys, indices),
                         [True, True, False, True, True, True])
        got = snapshot(pool, indices)
        self.assertTrue(same(want[:2] + want[3:], got[:2] + got[3:]))

    def test_mha_names_have_the_rank(self) -> None:
        """Each rank stores its own data."""
        pools = [mha_pool(), mha_pool()]
        backends = [self.open_pages(pool, tp_rank=rank, tp_size=2)
                    for rank, pool in enumerate(pools)]
        indices, keys = torch.arange(2 * PAGE_TOKENS), page_keys(2)
        for seed, (backend, pool) in enumerate(zip(backends, pools)):
            randomize(pool, seed)
            self.assertEqual(backend.batch_exists(keys), 0)
            self.assertEqual(backend.batch_set_v1(keys, indices), [True, True])
        for backend, pool in zip(backends, pools):
            want = snapshot(pool, indices)
            pool.kv_buffer.zero_()
            self.assertEqual(backend.batch_get_v1(keys, indices), [True, True])
            self.assertTrue(same(want, snapshot(pool, indices)))
        self.assertFalse(same(snapshot(pools[0], indices), snapshot(pools[1], indices)))

    def test_mla_backup_skip_batch_set_v1(self) -> None:
        """Rank 1 says True and writes nothing; what rank 0 writes it reads."""
        pools = [mla_pool(), mla_pool()]
        backends = [self.open_pages(pool, tp_rank=rank, tp_size=2, is_mla_model=True)
                    for rank, pool in enumerate(pools)]
        indices, keys = torch.arange(3 * PAGE_TOKENS), page_keys(3)
        randomize(pools[1], 1)
        self.assertEqual(backends[1].batch_set_v1(keys, indices), [True] * 3)
        self.assertEqual(self.names(), [])
        self.assertEqual(backends[1].batch_exists(keys), 0)
        self.assertEqual(backends[1].batch_get_v1(keys, indices), [False] * 3)

        randomize(pools[0], 0)
        self.assertEqual(backends[0].batch_set_v1(keys, indices), [True] * 3)
        self.assertEqual(len(self.names()), 3)
        self.assertEqual(backends[1].batch_exists(keys), 3)
        self.assertEqual(backends[1].batch_get_v1(keys, indices), [True] * 3)
        self.assertTrue(same(snapshot(pools[0], indices), snapshot(pools[1], indices)))

    def test_mla_backup_skip_of_tensors(self) -> None:
        backend = self.open(tp_rank=1, tp_size=2, is_mla_model=True)
        self.assertTrue(backend.set("key", torch.ones(8)))
        self.assertTrue(backend.batch_set(["a", "b"], [torch.ones(8), torch.ones(8)]))
        self.assertEqual(self.names(), [])
        writer = self.open(tp_rank=0, tp_size=2, is_mla_model=True)
        self.assertTrue(writer.set("key", torch.ones(8)))
        self.assertTrue(backend.exists("key"))

    def test_batch_exists_one_object_per_page(self) -> None:
        """In kvcellar's own naming K and V of a page are one object."""
        backend = self.round_trip(mha_pool())
        keys = page_keys(6)
        self.assertEqual(len(self.names()), 6)
        self.lose(keys[4])
        self.assertEqual(backend.batch_exists(keys), 4)
        self.assertEqual(backend.batch_exists(keys[5:]), 1)
        self.assertEqual(backend.batch_exists([]), 0)


class TestPagesInFiles(TestPages):
    layout = "files"


class TestPagesNixlNaming(TestPages):
    """The same in HiCacheNixl's naming, and its key expansion."""

    naming = "nixl"
    test_zero_copy_layouts = None
    test_a_failed_page_costs_itself = None
    test_batch_exists_one_object_per_page = None

    def test_batch_exists_mha_zero_copy(self) -> None:
        """A page is two files, _k and _v; it counts only when both are there."""
        backend = self.round_trip(mha_pool(), tp_rank=1, tp_size=4)
        keys = page_keys(6)
        names = {f"{key}_org-model_1_4_{part}" for key in keys for part in "kv"}
        self.assertEqual({path.name for path in self.files()}, names)
        for path in self.files():
            self.assertEqual(path, hicachenixl_path(path.name, [str(self.root)]))
        for lost, count in ((f"{keys[4]}_org-model_1_4_v", 4), (f"{keys[1]}_org-model_1_4_k", 1)):
            hicachenixl_path(lost, [str(self.root)]).unlink()
            self.assertEqual(backend.batch_exists(keys), count)
        self.assertEqual(backend.batch_exists(keys[2:]), 2)

    def test_batch_exists_mla_zero_copy(self) -> None:
        """A page is one file, _k, without a rank."""
        backend = self.round_trip(mla_pool(), is_mla_model=True, tp_rank=0, tp_size=4)
        keys = page_keys(6)
        self.assertEqual({path.name for path in self.files()},
                         {f"{key}_org-model_k" for key in keys})
        hicachenixl_path(f"{keys[3]}_org-model_k", [str(self.root)]).unlink()
        self.assertEqual(backend.batch_exists(keys), 3)
        self.assertEqual(backend.batch_exists(keys[4:]), 2)

    def test_batch_exists_copy_mode(self) -> None:
        """Other layouts, and pages that O_DIRECT cannot take as they lie: one bare name a page."""
        self.round_trip(mha_pool("layer_first"))
        mha = {f"{key}_org-model_0_1" for key in page_keys(6)}
        self.assertEqual({path.name for path in self.files()}, mha)
        self.round_trip(mla_pool(lora=128), is_mla_model=True)
        mla = {f"{key}_org-model" for key in page_keys(6)}
        self.assertEqual({path.name for path in self.files()}, mha | mla)

    def test_routing_over_three_directories(self) -> None:
        dirs = [str(self.folder / name) for name in ("one", "two", "three")]
        os.environ[ENV_DIRS] = ",".join(dirs)
        for path in dirs:
            os.mkdir(path)
        self.round_trip(mha_pool())
        names = {f"{key}_org-model_0_1_{part}" for key in page_keys(6) for part in "kv"}
        for name in names:
            self.assertTrue(hicachenixl_path(name, dirs).is_file(), name)
        self.assertEqual(sum(len(self.files(Path(path))) for path in dirs), len(names))


class TestConfiguration(Case):
    """Plugins, forms of the configuration, and the environment."""

    def plugin_of(self, backend: KvCellarStorage) -> str:
        return str(json.loads(backend.store.describe("json"))["store"]["plugin"])

    def usable(self, backend: KvCellarStorage) -> bool:
        """Whether a new tensor can be stored and read."""
        value, target = torch.randn(50), torch.zeros(50)
        key = hashlib.sha256(raw_bytes(value)).hexdigest()
        return (backend.set(key, value) and backend.get(key, target) is not None
                and torch.equal(value, target))

    def test_auto_takes_posix(self) -> None:
        backend = self.open()
        self.assertEqual(self.plugin_of(backend), "posix")
        self.assertTrue(self.usable(backend))

    def test_selection_falls_back_with_reasons(self) -> None:
        """3FS and GDS are passed over, the reason is told, and the next active one is taken."""
        backend = self.open({"plugin": {
            "3fs": {"active": True, "mount_point": "/mnt/3fs"},
            "gds": {"active": True}, "gds_mt": {"active": True},
            "posix": {"active": True, "use_uring": "true"}}})
        text = backend.store.describe()
        for name in ("3fs", "gds", "gds_mt"):
            self.assertRegex(text, rf"(?m)\b{name}\b.*not built")
        self.assertEqual(self.plugin_of(backend), "posix")
        self.assertTrue(self.usable(backend))

    def test_selection_of_nothing_usable_is_an_error(self) -> None:
        """Never a silent fallback: each one that was asked for is named with its reason."""
        with self.assertRaises(kvcellar.Error) as caught:
            self.open({"plugin": {"gds": {"active": True}, "obj": {"active": True}}})
        text = str(caught.exception)
        self.assertRegex(text, r"gds\b.*not built")
        self.assertRegex(text, r"obj\b.*bucket|obj\b.*not built")
        self.assertEqual(self.files(), [])

    def test_selection_by_environment(self) -> None:
        os.environ[ENV_PLUGIN] = "POSIX"
        self.assertTrue(self.usable(self.open({"use_uring": "true"})))
        os.environ[ENV_PLUGIN] = "GDS"
        with self.assertRaises(kvcellar.Error) as caught:
            self.open()
        self.assertRegex(str(caught.exception), r"(?i)gds\b.*not built")
        # An active section comes before the environment.
        self.assertTrue(self.usable(self.open({"plugin": {"posix": {"active": "true"}}})))

    def test_flat_and_qualified_form(self) -> None:
        engines = set()
        for options in ({"use_posix_aio": "true"},
                        {"plugin": {"posix": {"use_posix_aio": "true", "active": True}}}):
            backend = self.open(options)
            engines.add("posix_aio" in backend.store.describe())
            self.assertTrue(self.usable(backend))
        self.assertEqual(engines, {True})

    def test_direct_io(self) -> None:
        """The key comes before the variable, and the variable before the default."""
        text = kvcellar.config_describe({})
        self.assertRegex(text, r"use_direct_io = true")
        os.environ[ENV_DIRECT] = "0"
        self.assertRegex(kvcellar.config_describe({}), r"use_direct_io = false")
        self.assertRegex(kvcellar.config_describe({"use_direct_io": True}),
                         r"use_direct_io = true")
        self.assertTrue(self.usable(self.open()))

    def test_cleaner_keys_are_accepted(self) -> None:
        self.open({"l3_cleaner_enabled": True, "l3_cleaner_high_watermark": 85.0,
                   "l3_cleaner_low_watermark": 75.0})
        for options in ({"l3_cleaner_high_watermark": 70.0, "l3_cleaner_low_watermark": 70.0},
                        {"l3_cleaner_high_watermark": 101.0}, {"l3_cleaner_enabled": "flase"}):
            with self.assertRaises(kvcellar.ConfigError) as caught:
                self.open(options)
            self.assertIn("l3_cleaner", str(caught.exception))

    def test_storage_directories_with_commas(self) -> None:
        dirs = [str(self.folder / name) for name in ("a", "b", "c")]
        for path in dirs:
            os.mkdir(path)
        os.environ[ENV_DIRS] = f"{dirs[0]}, {dirs[1]},{dirs[2]}"
        backend = self.open()
        for number in range(30):
            self.assertTrue(backend.set(f"key{number}", torch.full((4,), number)))
        self.assertTrue(all(self.files(Path(path)) for path in dirs))
        self.assertEqual(backend.batch_exists([f"key{number}" for number in range(30)]), 30)

        os.symlink(dirs[0], self.folder / "again")
        os.environ[ENV_DIRS] = f"{dirs[0]},{self.folder / 'again'}"
        with self.assertRaises((kvcellar.ConfigError, kvcellar.Error)) as caught:
            self.open()
        self.assertIn("again", str(caught.exception))

    def test_misspelt_keys_are_refused(self) -> None:
        for options, word in (({"use_urng": "true"}, "use_uring"),
                              ({"plugin": {"posix": {"use_uring": "flase"}}}, "flase"),
                              ({"use_uring": "true", "use_aio": "true"}, "use_aio")):
            with self.assertRaises(kvcellar.ConfigError) as caught:
                self.open(options)
            self.assertIn(word, str(caught.exception))

    def test_keys_of_sglang_are_accepted(self) -> None:
        self.assertTrue(self.usable(self.open({
            "backend_name": "kvcellar", "module_path": "kvcellar.sglang",
            "class_name": "KvCellarStorage", "interface_v1": 1, "prefetch_threshold": 16})))


if __name__ == "__main__":
    unittest.main(verbosity=2)
