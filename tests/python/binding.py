# SPDX-License-Identifier: Apache-2.0
"""What the tests of the extension module share: stores in memory, pools over one buffer."""

import array
import ctypes
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import kvcellar

PAGE_BYTES = 512
_places = itertools.count()


def mem(**options: Any) -> dict[str, Any]:
    """A configuration of a store in memory, at a place of its own in this process."""
    return {"plugin": {"mem": {"active": True}}, "storage_dirs": [f"/mem-{next(_places)}"],
            **options}


def fault(rules: str, **options: Any) -> dict[str, Any]:
    """The same, failing by rule (docs/fault-plugin.md)."""
    return mem(plugin={"fault": {"active": True, "lower": "mem", "rules": rules}}, **options)


class Pages:
    """Memory for pages of one part, each filled with its own byte."""

    def __init__(self, count: int = 8, page_bytes: int = PAGE_BYTES) -> None:
        self.count = count
        self.page_bytes = page_bytes
        self.memory = bytearray(count * page_bytes)
        self._exported = (ctypes.c_char * len(self.memory)).from_buffer(self.memory)
        for page in range(count):
            self.fill(page, page + 1)

    @property
    def address(self) -> int:
        return ctypes.addressof(self._exported)

    def fill(self, page: int, value: int) -> None:
        self[page] = bytes([value % 256]) * self.page_bytes

    def __getitem__(self, page: int) -> bytes:
        return bytes(self.memory[page * self.page_bytes:(page + 1) * self.page_bytes])

    def __setitem__(self, page: int, content: bytes) -> None:
        assert len(content) == self.page_bytes
        self.memory[page * self.page_bytes:(page + 1) * self.page_bytes] = content

    def part(self) -> dict[str, Any]:
        return {"base": self.address, "piece_bytes": self.page_bytes, "piece_count": 1,
                "page_stride_bytes": self.page_bytes}

    def pool(self, namespace: kvcellar.Namespace, name: str = "kv",
             **options: Any) -> kvcellar.Pool:
        return namespace.pool(name, [self.part()], page_count=self.count, owner=self, **options)


class Rig:
    """A store with one namespace and one pool."""

    def __init__(self, config: Any = None, pages: int = 8, **namespace: Any) -> None:
        self.store = kvcellar.Store(mem() if config is None else config)
        self.namespace = self.store.namespace("model", identity="test", **namespace)
        self.pages = Pages(pages)
        self.pool = self.pages.pool(self.namespace)


@contextmanager
def rig(config: Any = None, pages: int = 8, **namespace: Any) -> Iterator[Rig]:
    it = Rig(config, pages, **namespace)
    try:
        yield it
    finally:
        it.store.close()


def indices(*values: int) -> array.array:
    return array.array("q", values)


class Tensor:
    """As much of a tensor as the extension asks for."""

    def __init__(self, memory: Any, item_bytes: int = 8, dtype: str = "torch.int64",
                 device: str = "cpu", contiguous: bool = True) -> None:
        self.memory = memory
        self.item_bytes = item_bytes
        self.dtype = dtype
        self.device = device
        self.contiguous = contiguous

    def data_ptr(self) -> int:
        return ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def numel(self) -> int:
        return len(memoryview(self.memory).cast("B")) // self.item_bytes

    def element_size(self) -> int:
        return self.item_bytes

    def is_contiguous(self) -> bool:
        return self.contiguous


def run_python(code: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """Runs code in a process of its own, which can import kvcellar and this module."""
    path = os.pathsep.join([os.path.dirname(os.path.abspath(__file__)), *sys.path])
    return subprocess.run([sys.executable, "-X", "faulthandler", "-c", code], text=True,
                          capture_output=True, timeout=timeout, check=False,
                          env={**os.environ, "PYTHONPATH": path})
