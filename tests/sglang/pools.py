# SPDX-License-Identifier: Apache-2.0
"""SGLang's own KV pools on a CPU: device pools beside the host pools that mirror them.

No model and no GPU is involved. A device pool on a CPU is ordinary memory, and the copies between
the two are those of SGLang, with the operations of `shim/sgl_kernel` below them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.mem_cache import memory_pool
from sglang.srt.mem_cache.device_pool_info import MambaStateBufferInfo
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorageConfig,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
)
from sglang.srt.mem_cache.memory_pool_host import LogicalHostPool
from sglang.srt.mem_cache.pool_host.dsa import DSAIndexerPoolHost, make_dsa_indexer_pool_decl
from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost
from sglang.srt.mem_cache.pool_host.mha import get_mha_host_pool_cls
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost

# The tensors are small: threads cost more than they gain, most of all on a busy machine.
torch.set_num_threads(1)

POISON = 0xAA
"""What host memory is filled with before a get: a byte that was not read stays visible."""

DEVICE_TOKENS = 512

LAYOUT_AND_IO = (
    ("layer_first", "kernel"),
    ("layer_first", "direct"),
    ("page_first", "kernel"),
    ("page_first_direct", "direct"),
    ("page_head", "kernel"),
)
"""The combinations of host layout and copy operation that SGLang's pools have.

Only MHA pools have page_head; Mamba pools have page_first and page_first_direct."""


def randomise(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Fills all bytes of a contiguous tensor, also with what are no numbers of its type."""
    raw = tensor.view(torch.uint8).view(-1)
    torch.randint(0, 256, raw.shape, dtype=torch.uint8, generator=generator, out=raw)


@dataclass
class PoolPair:
    """One pool of HiCache: device memory, and the host pool that backs it up.

    `buffers` are all device tensors, indexed by row along `row_axis`; a row holds `row_tokens`
    tokens.
    """

    name: PoolName
    device: Any
    host: Any
    buffers: list[torch.Tensor]
    layers: int
    row_axis: int = 0
    row_tokens: int = 1

    @property
    def page_tokens(self) -> int:
        """Token indices that address one page."""
        return self.host.page_size

    @property
    def page_count(self) -> int:
        """Pages that the host pool holds."""
        return self.host.size // self.page_tokens

    def rows(self, token_indices: torch.Tensor) -> list[torch.Tensor]:
        """Copies of the device rows that the tokens lie in, one tensor per device buffer."""
        rows = token_indices[:: self.row_tokens] // self.row_tokens
        return [buffer.index_select(self.row_axis, rows) for buffer in self.buffers]

    def fill_device(self, seed: int) -> None:
        """Puts random bytes that follow from the seed into all of the device pool."""
        generator = torch.Generator().manual_seed(seed)
        for buffer in self.buffers:
            randomise(buffer, generator)

    def backup(self, host_indices: torch.Tensor, device_indices: torch.Tensor, io: str) -> None:
        """Copies device -> host by SGLang's operation `io`."""
        self.host.backup_from_device_all_layer(self.device, host_indices, device_indices, io)

    def load(self, host_indices: torch.Tensor, device_indices: torch.Tensor, io: str) -> None:
        """Copies host -> device, layer by layer, by SGLang's operation `io`."""
        for layer in range(self.layers):
            self.host.load_to_device_per_layer(
                self.device, host_indices, device_indices, layer, io
            )

    def pages(self, count: int, seed: int = 0) -> torch.Tensor:
        """Token indices of `count` pages in random order; SGLang keeps page 0 for padding.

        Pages of the lower half come from even seeds and those of the upper half from odd ones, so
        that a source and a target do not overlap.
        """
        half = min(self.page_count, self.device_pages) // 2
        generator = torch.Generator().manual_seed(seed)
        chosen = torch.randperm(half - 1, generator=generator)[:count] + 1 + (seed % 2) * half
        assert len(chosen) == count, f"{self.name} has only {half - 1} pages in each half"
        return (
            chosen.view(-1, 1) * self.page_tokens + torch.arange(self.page_tokens).view(1, -1)
        ).reshape(-1)

    @property
    def device_pages(self) -> int:
        """Pages that the device pool holds."""
        return self.buffers[0].shape[self.row_axis] * self.row_tokens // self.page_tokens

    def host_tensors(self) -> list[torch.Tensor]:
        """All memory of the host pool."""
        if self.name in (PoolName.INDEXER,):
            return [self.host.index_k_with_scale_buffer]
        buffers = self.host.kv_buffer
        return list(buffers) if isinstance(buffers, (list, tuple)) else [buffers]

    def poison_host(self) -> None:
        """Fills all of the host pool with POISON."""
        for tensor in self.host_tensors():
            tensor.view(torch.uint8).fill_(POISON)

    def host_pages(self, token_indices: torch.Tensor) -> list[bytes]:
        """The bytes of each page, in the pool's own order."""
        return [
            self.host.get_data_page(int(first), flat=True)
            .contiguous()
            .view(torch.uint8)
            .numpy()
            .tobytes()
            for first in token_indices[:: self.page_tokens]
        ]

    def assert_untouched_but(self, token_indices: torch.Tensor) -> None:
        """Nothing but the pages named differs from POISON."""
        changed = sum(
            int(torch.count_nonzero(tensor.view(torch.uint8) != POISON))
            for tensor in self.host_tensors()
        )
        named = sum(len(page) - page.count(POISON) for page in self.host_pages(token_indices))
        assert changed == named, f"{self.name}: {changed - named} bytes of other pages were written"


@dataclass
class HostCache:
    """The pools of one rank: the anchor and its side pools, as the controller registers them."""

    anchor: PoolPair
    sides: tuple[PoolPair, ...] = ()

    @property
    def pools(self) -> tuple[PoolPair, ...]:
        return (self.anchor, *self.sides)

    def register(self, storage: Any) -> None:
        """Registers all pools in the order that SGLang does it in."""
        storage.register_mem_pool_host(self.anchor.host)
        if self.sides:
            for pool in self.pools:
                storage.register_mem_host_pool_v2(pool.host, pool.name)
        storage.on_host_pools_registered()


def make_mha(
    layout: str,
    *,
    aligned: bool = True,
    page: int = 16,
    heads: int = 2,
    layers: int = 3,
    tokens: int = DEVICE_TOKENS,
    dtype: torch.dtype = torch.bfloat16,
    name: PoolName = PoolName.KV,
) -> PoolPair:
    """An MHA pool. `aligned`: K and V of a page are multiples of 4096 bytes."""
    head_dim = 64 if aligned else 40
    device = memory_pool.MHATokenToKVPool(
        tokens, page, dtype, heads, head_dim, layers, "cpu", False
    )
    info = device.get_device_pool_infos()[0].buffer_info
    host = get_mha_host_pool_cls(info)(
        info,
        2.0,
        0,
        page,
        layout,
        pin_memory=False,
        device_capacity_tokens=device.size,
        start_layer=device.start_layer,
        end_layer=device.end_layer,
        pool_label=str(name),
    )
    return PoolPair(name, device, host, [*device.k_buffer, *device.v_buffer], layers)


def make_mla(
    layout: str,
    *,
    aligned: bool = True,
    page: int | None = None,
    layers: int = 3,
    tokens: int = DEVICE_TOKENS,
    dtype: torch.dtype = torch.bfloat16,
) -> PoolPair:
    """An MLA pool. `aligned`: a page is a multiple of 4096 bytes."""
    page = page or (64 if aligned else 16)
    tokens = max(tokens, 32 * page)
    device = memory_pool.MLATokenToKVPool(tokens, page, dtype, 128, 64, layers, "cpu", False)
    return PoolPair(
        PoolName.KV, device, _mla_host(device, layout, page), list(device.kv_buffer), layers
    )


def _mla_host(device: Any, layout: str, page: int) -> MLATokenToKVPoolHost:
    return MLATokenToKVPoolHost(
        device.get_device_pool_infos()[0].buffer_info,
        2.0,
        0,
        page,
        layout,
        pin_memory=False,
        override_kv_cache_dim=device.kv_cache_dim,
        device_capacity_tokens=device.size,
        start_layer=device.start_layer,
        end_layer=device.end_layer,
        target_layer_num=device.layer_num,
    )


def make_mamba(layout: str, *, aligned: bool = True, slots: int = 32) -> PoolPair:
    """Mamba states: temporal and two conv states; one slot is one page."""
    generator = torch.Generator().manual_seed(0)
    temporal_shape, conv_shapes = ((8, 16, 16), ((512, 4), (512, 4)))
    if not aligned:
        temporal_shape, conv_shapes = ((2, 16, 16), ((48, 3), (16, 3)))
    layers = 2
    info = MambaStateBufferInfo(
        temporal=torch.randn(layers, slots, *temporal_shape, generator=generator).bfloat16(),
        conv=tuple(
            torch.randn(layers, slots, *shape, generator=generator).bfloat16()
            for shape in conv_shapes
        ),
    )
    host = MambaPoolHost(
        info, 2.0, 0, layout=layout, pin_memory=False, device_capacity=slots
    )
    return PoolPair(PoolName.MAMBA, None, host, [info.temporal, *info.conv], layers, row_axis=1)


def make_dsa(layout: str, *, page: int = 64, layers: int = 2) -> tuple[PoolPair, PoolPair]:
    """A DSA pool: latent KV, and the indexer's keys, which ride on the same pages."""
    device = memory_pool.DSATokenToKVPool(
        size=32 * page,
        page_size=page,
        dtype=torch.bfloat16,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        layer_num=layers,
        device="cpu",
        index_head_dim=128,
        enable_memory_saver=False,
        kv_cache_dim=576,
    )
    kv_host = _mla_host(device, layout, page)
    indexer_host = DSAIndexerPoolHost(
        make_dsa_indexer_pool_decl(device), kv_host, pin_memory=False
    )
    indexer_buffers = list(device.index_k_with_scale_buffer)
    return (
        PoolPair(PoolName.KV, device, kv_host, list(device.kv_buffer), layers),
        PoolPair(
            PoolName.INDEXER, device, indexer_host, indexer_buffers, layers, row_tokens=page
        ),
    )


def make_logical(page: int = 16, pages: int = 64) -> PoolPair:
    """An anchor that has no bytes of its own: its keys gate what the side pools hold."""
    host = LogicalHostPool(page * pages, page, "page_first_direct")
    return PoolPair(PoolName.KV, None, host, [torch.empty(page * pages)], 0)


HEADS, HEAD_GROUPS = 8, 4
"""Attention heads of a model, and the least common multiple of the tp sizes that serve it."""


def fill_heads(pool: PoolPair, tp_rank: int, tp_size: int) -> None:
    """Gives the device pool of a rank its share of the heads of one model-wide KV cache."""
    generator = torch.Generator().manual_seed(3)
    mine = slice(tp_rank * HEADS // tp_size, (tp_rank + 1) * HEADS // tp_size)
    for buffer in pool.buffers:
        rows, _, head_dim = buffer.shape
        everything = torch.randn(rows, HEADS, head_dim, generator=generator)
        buffer.copy_(everything[:, mine].to(buffer.dtype))


def storage_config(**changes: Any) -> HiCacheStorageConfig:
    """What SGLang gives a storage class: one rank of one replica of model "org/model"."""
    fields: dict[str, Any] = {
        "tp_rank": 0,
        "tp_size": 1,
        "pp_rank": 0,
        "pp_size": 1,
        "attn_cp_rank": 0,
        "attn_cp_size": 1,
        "is_mla_model": False,
        "enable_storage_metrics": False,
        "is_page_first_layout": True,
        "model_name": "org/model",
        "extra_config": {},
    }
    return HiCacheStorageConfig(**{**fields, **changes})


def make_keys(label: str, count: int) -> list[str]:
    """Keys as SGLang makes them: 64 hex digits."""
    return [hashlib.sha256(f"{label}/{number}".encode()).hexdigest() for number in range(count)]


def side_transfer(
    pool: PoolPair,
    keys: list[str],
    host_indices: torch.Tensor | None = None,
    policy: PoolHitPolicy = PoolHitPolicy.ALL_PAGES,
) -> PoolTransfer:
    """What SGLang hands over for the pages of one side pool."""
    return PoolTransfer(pool.name, host_indices=host_indices, keys=keys, hit_policy=policy)
