# SPDX-License-Identifier: Apache-2.0
"""SGLang's host pools and configuration without SGLang and torch, for tests of the adapter."""

import ctypes
import mmap
from array import array
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


@dataclass
class FakeConfig:
    """HiCacheStorageConfig of SGLang 0.5.23, as far as a backend reads it."""

    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    attn_cp_rank: int = 0
    attn_cp_size: int = 1
    is_mla_model: bool = False
    enable_storage_metrics: bool = False
    is_page_first_layout: bool = True
    model_name: str | None = "org/model"
    tp_lcm_size: int | None = None
    should_split_heads: bool = False
    dp_rank: int = 0
    extra_config: dict | None = field(default_factory=dict)
    dcp_size: int = 1
    dcp_rank: int = 0
    logical_page_size: int | None = None


class FakeTensor:
    """Contiguous bytes with a shape; as much of torch.Tensor as the adapter touches."""

    def __init__(self, memory: Any, shape: tuple[int, ...], itemsize: int, dtype: str) -> None:
        self.memory = memory
        self.shape = shape
        self.dtype = dtype
        self.device = SimpleNamespace(type="cpu")
        self._itemsize = itemsize
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(memory))

    def data_ptr(self) -> int:
        return self._address

    def element_size(self) -> int:
        return self._itemsize

    def numel(self) -> int:
        count = 1
        for n in self.shape:
            count *= n
        return count

    def stride(self) -> tuple[int, ...]:
        strides, step = [], 1
        for n in reversed(self.shape):
            strides.append(step)
            step *= n
        return tuple(reversed(strides))

    def is_contiguous(self) -> bool:
        return True

    def contiguous(self) -> "FakeTensor":
        return self


class FakePool:
    """An MHA host pool, page_first: K of all tokens, then V of all tokens."""

    device = "cpu"

    def __init__(
        self,
        pages: int = 16,
        page_size: int = 4,
        token_bytes: int = 1024,
        parts: int = 2,
        layout: str = "page_first",
        dtype: str = "torch.bfloat16",
    ) -> None:
        self.page_size = page_size
        self.size = pages * page_size
        self.layout = layout
        self.layer_num = 1
        self.dtype = dtype
        self.parts = parts
        self.part_bytes = page_size * token_bytes
        self.memory = self.allocate(parts * pages * self.part_bytes)
        shape = (parts, self.size, token_bytes // 2)
        self.kv_buffer = FakeTensor(self.memory, shape, 2, dtype)

    def allocate(self, nbytes: int) -> mmap.mmap:
        return mmap.mmap(-1, nbytes)

    @property
    def page_bytes(self) -> int:
        return self.parts * self.part_bytes

    def offset(self, page: int, part: int) -> int:
        return (part * (self.size // self.page_size) + page) * self.part_bytes

    def get_page_buffer_meta(self, indices: Any) -> tuple[list[int], list[int]]:
        assert len(indices) % self.page_size == 0
        pages = [index // self.page_size for index in indices.tolist()[:: self.page_size]]
        base = self.kv_buffer.data_ptr()
        at = [base + self.offset(page, part) for page in pages for part in range(self.parts)]
        return at, [self.part_bytes] * len(at)

    def is_stride_page_aligned(self, page_size_bytes: int = 4096) -> bool:
        return self.part_bytes % page_size_bytes == 0

    def write(self, page: int, data: bytes) -> None:
        assert len(data) == self.page_bytes
        for part in range(self.parts):
            at = self.offset(page, part)
            piece = data[part * self.part_bytes : (part + 1) * self.part_bytes]
            self.memory[at : at + self.part_bytes] = piece

    def read(self, page: int) -> bytes:
        offsets = [self.offset(page, part) for part in range(self.parts)]
        return b"".join(self.memory[at : at + self.part_bytes] for at in offsets)

    def indices(self, pages: list[int]) -> array:
        return array("q", [p * self.page_size + t for p in pages for t in range(self.page_size)])


class FakeAnchor:
    """A logical anchor: tokens without bytes."""

    device = "cpu"
    layout = "page_first"
    dtype = "torch.uint8"
    kv_buffer = None

    def __init__(self, pages: int = 16, page_size: int = 4) -> None:
        self.page_size = page_size
        self.size = pages * page_size


@dataclass
class FakeTransfer:
    """PoolTransfer."""

    name: str
    keys: list[str] | None = None
    host_indices: Any = None
    hit_policy: str = "all_pages"
    block_pages: int = 0
    group_pages: int = 0


@dataclass
class FakeExtraInfo:
    """HiCacheStorageExtraInfo."""

    prefix_keys: list[str] | None = None
    extra_info: dict | None = None


def page_data(seed: int, nbytes: int) -> bytes:
    """Bytes that tell pages and positions apart."""
    block = bytes((seed * 37 + i * 11 + (i >> 8) * 101) & 0xFF for i in range(997))
    return (block * (nbytes // len(block) + 1))[:nbytes]


def keys_of(count: int, seed: int = 0) -> list[str]:
    return [f"{seed:032x}{i:032x}" for i in range(count)]
