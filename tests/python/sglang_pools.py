# SPDX-License-Identifier: Apache-2.0
"""Real host pools of SGLang on a CPU, for tests of the adapter. Needs sglang and torch, and
SGLANG_USE_CPU_ENGINE=1 before SGLang is imported; no GPU and no model."""

import os
from typing import Any

os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from sglang.srt.mem_cache.device_pool_info import MambaStateBufferInfo
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
from sglang.srt.mem_cache.memory_pool import (
    DSATokenToKVPool,
    MHATokenToKVPool,
    MLATokenToKVPool,
)
from sglang.srt.mem_cache.memory_pool_host import DeepSeekV4PagedHostPool, LogicalHostPool
from sglang.srt.mem_cache.pool_host.base import host_memory_budget_scope
from sglang.srt.mem_cache.pool_host.dsa import DSAIndexerPoolHost, make_dsa_indexer_pool_decl
from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost
from sglang.srt.mem_cache.pool_host.mha import get_mha_host_pool_cls
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
from sglang.srt.runtime_context import get_parallel

# SGLang keeps 10 GiB of the machine free; these pools have a few MiB.
BUDGET = 1 << 30
MHA_LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head", "page_unified")
MLA_LAYOUTS = ("layer_first", "page_first", "page_first_direct")


def mha_device(
    tokens: int = 512, page: int = 16, heads: int = 4, dim: int = 64, layers: int = 3,
    dtype: torch.dtype = torch.bfloat16, v_dim: int | None = None,
) -> MHATokenToKVPool:
    more = {} if v_dim is None else {"v_head_dim": v_dim}
    return MHATokenToKVPool(tokens, page, dtype, heads, dim, layers, "cpu", False, **more)


def mha(layout: str = "page_first", page: int = 16, **device: Any) -> Any:
    """An MHA host pool of 33 pages or so."""
    dev = mha_device(page=page, **device)
    info = dev.get_device_pool_infos()[0].buffer_info
    with host_memory_budget_scope(BUDGET):
        return get_mha_host_pool_cls(info)(
            info, 1.0, 0, page, layout, pin_memory=False, device_capacity_tokens=dev.size,
            start_layer=dev.start_layer, end_layer=dev.end_layer,
        )


def mla(
    layout: str = "page_first", page: int = 16, layers: int = 3, lora: int = 192, rope: int = 64,
    dcp_size: int = 1, dcp_rank: int = 0, tokens: int = 512,
) -> Any:
    """An MLA host pool; under DCP `page` is the logical page."""
    dev = MLATokenToKVPool(tokens, page, torch.bfloat16, lora, rope, layers, "cpu", False)
    info = dev.get_device_pool_infos()[0].buffer_info
    with host_memory_budget_scope(BUDGET):
        return MLATokenToKVPoolHost(
            info, 1.0, 0, page, layout, pin_memory=False, override_kv_cache_dim=dev.kv_cache_dim,
            device_capacity_tokens=dev.size, start_layer=dev.start_layer, end_layer=dev.end_layer,
            target_layer_num=dev.layer_num, dcp_size=dcp_size, dcp_rank=dcp_rank,
        )


def dsa(layout: str = "page_first", page: int = 64, layers: int = 2, tokens: int = 2048) -> Any:
    """(MLA host pool, DSA indexer host pool) over one device pool."""
    with get_parallel().override(attn_dcp_size=1):
        dev = DSATokenToKVPool(
            size=tokens, page_size=page, dtype=torch.bfloat16, kv_lora_rank=512,
            qk_rope_head_dim=64, layer_num=layers, device="cpu", index_head_dim=128,
            enable_memory_saver=False, kv_cache_dim=576,
        )
    info = dev.get_device_pool_infos()[0].buffer_info
    with host_memory_budget_scope(BUDGET):
        kv = MLATokenToKVPoolHost(
            info, 1.0, 0, page, layout, pin_memory=False, override_kv_cache_dim=dev.kv_cache_dim,
            device_capacity_tokens=dev.size, start_layer=dev.start_layer, end_layer=dev.end_layer,
            target_layer_num=dev.layer_num,
        )
        return kv, DSAIndexerPoolHost(make_dsa_indexer_pool_decl(dev), kv, pin_memory=False)


def mamba(
    layout: str = "page_first", slots: int = 24, layers: int = 2, side: bool = False,
    temporal: tuple[int, ...] = (4, 16, 8), conv: tuple[tuple[int, ...], ...] = ((48, 3),),
) -> Any:
    """A Mamba state host pool, one slot a page; side: with a slot side state."""
    extra = (torch.zeros((slots, 5, 7), dtype=torch.int32),) if side else ()
    info = MambaStateBufferInfo(
        temporal=torch.zeros((layers, slots, *temporal), dtype=torch.float32),
        conv=tuple(torch.zeros((layers, slots, *shape), dtype=torch.bfloat16) for shape in conv),
        extra_checkpoint_buffers=extra,
    )
    with host_memory_budget_scope(BUDGET):
        return MambaPoolHost(
            info, 1.0, 0, device_capacity=slots, pin_memory=False, layout=layout
        )


def paged(layout: str = "page_first", layers: int = 3, item: int = 1000, page: int = 16) -> Any:
    """A compressed side pool of DeepSeek V4."""
    buffers = [torch.zeros((32, item), dtype=torch.uint8) for _ in range(layers)]
    with host_memory_budget_scope(BUDGET):
        return DeepSeekV4PagedHostPool(
            "deepseek_v4_c4", buffers, item, 32, page, layout=layout, pin_memory=False
        )


def anchor(pages: int = 32, page: int = 16) -> LogicalHostPool:
    return LogicalHostPool(pages * page, page, layout="page_first")


def config(**fields: Any) -> HiCacheStorageConfig:
    values: dict[str, Any] = dict(
        tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1,
        is_mla_model=False, enable_storage_metrics=False, is_page_first_layout=True,
        model_name="org/model", extra_config={},
    )
    values.update(fields)
    return HiCacheStorageConfig(**values)


def tensors_of(pool: Any) -> list[torch.Tensor]:
    """Every tensor that holds pages, each memory once."""
    from kvcellar.sglang.pools import pool_tensors

    kept: list[torch.Tensor] = []
    for tensor in sorted(pool_tensors(pool), key=lambda t: -t.numel() * t.element_size()):
        first, last = tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size()
        if not any(k.data_ptr() <= first and last <= k.data_ptr() + k.numel() * k.element_size()
                   for k in kept):
            kept.append(tensor)
    return kept


def randomise(pool: Any, seed: int = 1) -> None:
    generator = torch.Generator().manual_seed(seed)
    for tensor in tensors_of(pool):
        flat = tensor.view(torch.uint8)
        flat.copy_(torch.randint(0, 256, flat.shape, dtype=torch.uint8, generator=generator))


def zero(pool: Any) -> None:
    for tensor in tensors_of(pool):
        tensor.view(torch.uint8).zero_()


def indices(pool: Any, pages: list[int]) -> torch.Tensor:
    """Token indices of whole pages, as SGLang's allocator hands them out."""
    from kvcellar.sglang.pools import page_tokens_of

    n = page_tokens_of(pool)
    return torch.cat([torch.arange(p * n, (p + 1) * n) for p in pages]) if pages else torch.empty(
        0, dtype=torch.int64
    )


def snapshot(pool: Any) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in tensors_of(pool)]


def page_bytes(pool: Any, page: int) -> bytes:
    """The bytes of a page as the pool itself hands them out; not for pools without flat pages."""
    from kvcellar.sglang.pools import page_tokens_of

    flat = pool.get_data_page(page * page_tokens_of(pool), flat=True)
    return flat.contiguous().view(torch.uint8).numpy().tobytes()
