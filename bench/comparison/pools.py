# SPDX-License-Identifier: Apache-2.0
"""Real host pools of SGLang on a CPU, their contents, and the keys of their pages."""
import hashlib

import torch

from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.mem_cache.pool_host import base as pool_host_base
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost

PAGE_TOKENS = 64
HEADS, HEAD_DIM = 4, 128
LAYER_BYTES = PAGE_TOKENS * HEADS * HEAD_DIM * 2  # one layer of a page's K or V half, bfloat16
PARTS = 2  # K and V halves of a page
SECTOR_WORDS = 4096 // 8


def build_pool(part_bytes: int, pages: int) -> MHATokenToKVPoolHost:
    """page_first host pool of `pages` pages whose K and V halves have part_bytes each."""
    # A server's reserve of 10 GiB is too much for a machine that holds a disk in memory.
    pool_host_base.HICACHE_HOST_MEMORY_RESERVE_BYTES = 1 << 29
    layers, rest = divmod(part_bytes, LAYER_BYTES)
    if rest or not layers:
        raise SystemExit(f"compare: a part of {part_bytes} bytes is not a multiple of "
                         f"{LAYER_BYTES} (one layer)")
    device = MHATokenToKVPool(size=PAGE_TOKENS, page_size=PAGE_TOKENS, dtype=torch.bfloat16,
                              layer_num=layers, device="cpu", enable_memory_saver=False,
                              head_num=HEADS, head_dim=HEAD_DIM)
    return MHATokenToKVPoolHost(
        device.get_device_pool_infos()[0].buffer_info, 1.0, 0, PAGE_TOKENS, "page_first",
        pin_memory=False, device="cpu", device_capacity_tokens=PAGE_TOKENS, start_layer=0,
        end_layer=layers, host_token_capacity=PAGE_TOKENS * pages)


def fill(pool: MHATokenToKVPoolHost, source: torch.Generator) -> None:
    """Write noise over the whole pool, a different MiB each."""
    words = _words(pool)
    block = torch.randint(-2**62, 2**62, (1 << 17,), generator=source)
    for at in range(0, words.numel(), block.numel()):
        part = words[at:at + block.numel()]
        part.copy_(block[:part.numel()])
        block += 0x9E3779B97F4A7C1


def refresh(pool: MHATokenToKVPoolHost, target: torch.Tensor) -> None:
    """Change every 4 KiB of the pool, and make the target pages unlike any source page."""
    _words(pool).view(-1, SECTOR_WORDS)[:, 0] += 0x1000193
    _bytes(pool)[:, target] = 0xAA


def same_bytes(pool: MHATokenToKVPoolHost, source: torch.Tensor, target: torch.Tensor) -> bool:
    """Whether each target page holds what its source page holds, every byte compared."""
    view = _bytes(pool)
    return all(torch.equal(view[:, one], view[:, other])
               for one, other in zip(source.tolist(), target.tolist(), strict=True))


def token_indices(pages: torch.Tensor) -> torch.Tensor:
    """host_indices of these pages, int64[pages * PAGE_TOKENS]."""
    return (pages[:, None] * PAGE_TOKENS + torch.arange(PAGE_TOKENS)).flatten()


def page_keys(tag: str, count: int) -> list[str]:
    """Keys as SGLang makes them (SHA-256 in hex); they differ whenever the tag does."""
    return [hashlib.sha256(f"{tag}/{at}".encode()).hexdigest() for at in range(count)]


def _words(pool: MHATokenToKVPoolHost) -> torch.Tensor:
    return pool.kv_buffer.view(torch.int64).view(-1)


def _bytes(pool: MHATokenToKVPoolHost) -> torch.Tensor:
    """uint8[PARTS, page, bytes]"""
    return pool.kv_buffer.view(torch.uint8).reshape(PARTS, pool.page_num, -1)
