# SPDX-License-Identifier: Apache-2.0
"""A registered host pool: its plan, the library's pools for it, and one batch of its pages."""

from __future__ import annotations

import mmap
import operator
import re
import threading
import time
from collections.abc import Sequence
from typing import Any

from kvcellar.sglang import pools
from kvcellar.sglang.pools import Plan

BOUNCE_BYTES_MAX = 32 << 20
ALIGNMENT = 4096
INTEGERS = re.compile(r"(torch\.)?u?int\d+\Z")


class Misuse(Exception):
    """A call that cannot be right; its text says why. The pages of the call fail."""


class Deadline:
    """The time that one call of SGLang's may take: less than the 10 s after which SGLang gives up.

    limits_ms: the configured timeout of each operation.
    """

    CALL_SECONDS = 9.0

    def __init__(self, limits_ms: dict[str, int]) -> None:
        self._limits_ms = limits_ms
        self._end = time.monotonic() + self.CALL_SECONDS

    def timeout_ms(self, op: str) -> int:
        """For a transfer that starts now: the operation's timeout, or what is left of the call."""
        left = int((self._end - time.monotonic()) * 1000)
        return max(1, min(self._limits_ms.get(op, left), left))


class HostPool:
    """A host pool of SGLang as the library sees it.

    memory: pages by index; None where the plan has no fixed addresses. flat: pages that transfers
    bring as buffers; None for a marker. Both name the same objects.
    """

    def __init__(self, kvcellar: Any, name: str, host_pool: Any, plan: Plan) -> None:
        self._kvcellar = kvcellar
        self.name = name
        self.host_pool = host_pool
        self.plan = plan
        self.memory: Any = None
        self.flat: Any = None
        self.marker_buffer: Any = None
        self._bounce = threading.local()

    def open(
        self, namespace: Any, dtype: str | None, per_rank: bool | None, marker_bytes: int
    ) -> None:
        """Opens the library's pools; all of them or none. marker_bytes: of a page without bytes
        as another program stores it; 0 for a key alone."""
        plan = self.plan
        common: dict[str, Any] = {
            "byte_order": plan.byte_order,
            "dtype": dtype,
            "per_rank": per_rank,
            "copy_mode": plan.copy_mode,
        }
        if plan.kind == pools.MARKER:
            self._open_marker(namespace, common, marker_bytes)
            return
        self.flat = namespace.pool(self.name, plan.part_dicts(with_memory=False), **common)
        if plan.kind != pools.MEMORY:
            return
        try:
            self.memory = namespace.pool(
                self.name,
                plan.part_dicts(with_memory=True),
                page_count=plan.page_count,
                page_tokens=plan.page_tokens,
                token_indices=True,
                owner=plan.owner,
                **common,
            )
        except BaseException:
            self.close()
            raise

    def _open_marker(self, namespace: Any, common: dict[str, Any], nbytes: int) -> None:
        """The key alone; or, where another program must find it, a page of `nbytes` ones."""
        if not nbytes:
            self.memory = namespace.pool(self.name, marker=True, **(common | {"copy_mode": False}))
            return
        self.marker_buffer = aligned_buffer(ALIGNMENT)
        self.marker_buffer[:nbytes] = b"\x01" * nbytes
        parts = [{"piece_bytes": nbytes, "piece_count": 1}]
        self.memory = namespace.pool(self.name, parts, **common)

    def close(self) -> None:
        for pool in (self.memory, self.flat):
            if pool is not None:
                pool.close()
        self.memory = self.flat = None

    @property
    def by_key(self) -> Any:
        """The library's pool for what needs no memory: exists, remove."""
        return self.flat if self.memory is None else self.memory

    @property
    def zero_copy(self) -> bool:
        """No byte of a page is copied on its way, neither here nor in the library."""
        if self.plan.kind == pools.MARKER:
            return True
        return self.memory is not None and bool(self.memory.info()["zero_copy"])

    @property
    def copy_reason(self) -> str:
        """Why pages are copied, or ""."""
        if self.plan.reason:
            return self.plan.reason
        if self.memory is None or self.plan.kind == pools.MARKER:
            return ""
        return str(self.memory.info()["reason"])

    # ------------------------------------------------------------ batches

    def check(self, keys: Sequence[Any], indices: Any) -> Any:
        """The indices as the library takes them. Raises Misuse when they do not fit the keys."""
        if self.plan.kind == pools.MARKER:
            return None
        count = -1 if indices is None else _length(indices)
        expected = len(keys) * self.plan.page_tokens
        if count != expected:
            raise Misuse(
                f"pool {self.name}: {len(keys)} pages of {self.plan.page_tokens} tokens need "
                f"{expected} indices, got {max(count, 0)}"
            )
        dtype = getattr(indices, "dtype", None)
        if dtype is not None and not INTEGERS.match(str(dtype)):
            raise Misuse(f"pool {self.name}: indices of {dtype}: whole numbers are needed")
        indices = _host_int64(indices)
        if self.plan.kind != pools.MEMORY:  # there the library looks at them
            self._first_tokens(indices)
        return indices

    def _first_tokens(self, indices: Any) -> list[int]:
        """The index of each page's first token. Raises Misuse when one is no page of the pool."""
        tokens = self.plan.page_tokens
        given = indices[::tokens]
        firsts = []
        for value in given.tolist() if hasattr(given, "tolist") else given:
            try:
                first = -1 if isinstance(value, bool) else operator.index(value)
            except TypeError:
                first = -1
            if not 0 <= first < self.plan.page_count * tokens or first % tokens:
                raise Misuse(
                    f"pool {self.name}: index {value!r} is not the first of one of its "
                    f"{self.plan.page_count} pages of {tokens} tokens"
                )
            firsts.append(first)
        return firsts

    def transfer(self, op: str, keys: Sequence[Any], indices: Any, **how: Any) -> Any:
        """One get or set for Store.run(); not for the plan COPY. indices: as check() returned."""
        plan = self.plan
        if plan.kind == pools.MARKER:
            return self._marker_transfer(op, keys, **how)
        if plan.kind == pools.MEMORY:
            return self._kvcellar.Transfer(
                op, self.memory, keys, indices, index_stride=plan.page_tokens, **how
            )
        addresses, sizes = pools.page_addresses(self.host_pool, indices)
        if len(addresses) != len(keys) * len(plan.parts):
            raise Misuse(f"pool {self.name}: {len(addresses)} addresses for {len(keys)} pages")
        buffers = list(zip(addresses, sizes))
        for at, nbytes in buffers:
            if not plan.holds(at, nbytes):
                raise Misuse(f"pool {self.name}: it gives an address outside of its memory")
        return self._kvcellar.Transfer(op, self.flat, keys, buffers=buffers, **how)

    def _marker_transfer(self, op: str, keys: Sequence[Any], **how: Any) -> Any:
        if self.marker_buffer is None:
            return self._kvcellar.Transfer(op, self.memory, keys, **how)
        if op == "get":  # nobody looks at the bytes
            return self._kvcellar.Transfer("exists", self.memory, keys, **how)
        nbytes = int(self.memory.info()["page_bytes"])
        ones = memoryview(self.marker_buffer)[:nbytes]
        return self._kvcellar.Transfer(op, self.memory, keys, buffers=[ones] * len(keys), **how)

    def flat_transfer(
        self, op: str, keys: Sequence[Any], addresses: Sequence[int], **how: Any
    ) -> Any:
        """Pages that lie as flat pages, part after part, at the given addresses."""
        buffers = []
        for at in addresses:
            for nbytes in self.plan.part_bytes:
                buffers.append((at, nbytes))
                at += nbytes
        return self._kvcellar.Transfer(op, self.flat, keys, buffers=buffers, **how)

    def bounced(
        self, store: Any, op: str, keys: Sequence[Any], indices: Any, deadline: Deadline, **how: Any
    ) -> list[bool]:
        """The plan COPY: pages go through an aligned buffer of this thread, in portions."""
        page_bytes = self.plan.page_bytes
        stride = -(-page_bytes // ALIGNMENT) * ALIGNMENT
        portion = max(1, min(len(keys), BOUNCE_BYTES_MAX // stride))
        bounce = self._bounce_of(portion * stride)
        base = int(bounce.data_ptr())
        firsts = self._first_tokens(indices)
        parent, depth = how.pop("parent", None), how.pop("depth", 0)
        how.pop("timeout_ms", None)
        done: list[bool] = []
        for start in range(0, len(keys), portion):
            part = keys[start : start + portion]
            pages = [bounce[i * stride : i * stride + page_bytes] for i in range(len(part))]
            if op == "set":
                for page, first in zip(pages, firsts[start:]):
                    source = self.host_pool.get_data_page(first, flat=True)
                    page.copy_(_bytes_of(source))
            at = [base + i * stride for i in range(len(part))]
            chain = {"parent": parent, "depth": depth + start}
            timeout_ms = deadline.timeout_ms(op)
            transfer = self.flat_transfer(op, part, at, timeout_ms=timeout_ms, **chain, **how)
            ok = store.run([transfer])[0].ok
            if op == "get":
                for page, first, good in zip(pages, firsts[start:], ok):
                    if good:
                        self._put_page(first, page)
            done.extend(ok)
            parent = part[-1]
        return done

    def _put_page(self, first: int, page: Any) -> None:
        dummy = self.host_pool.get_dummy_flat_data_page()
        self.host_pool.set_from_flat_data_page(first, page.view(dummy.dtype))

    def _bounce_of(self, nbytes: int) -> Any:
        import torch

        bounce = getattr(self._bounce, "tensor", None)
        if bounce is None or bounce.numel() < nbytes:
            bounce = torch.frombuffer(aligned_buffer(nbytes), dtype=torch.uint8)
            self._bounce.tensor = bounce
        return bounce


def aligned_buffer(nbytes: int) -> mmap.mmap:
    """Zeroed memory that begins on a page of the system."""
    return mmap.mmap(-1, nbytes)


def _bytes_of(tensor: Any) -> Any:
    import torch

    return tensor.contiguous().view(torch.uint8).reshape(-1)


def _length(indices: Any) -> int:
    numel = getattr(indices, "numel", None)
    return int(numel()) if numel is not None else len(indices)


def _host_int64(indices: Any) -> Any:
    """A contiguous int64 tensor in host memory; what is none of torch's goes on as it is."""
    device = getattr(indices, "device", None)
    if device is None or not hasattr(indices, "data_ptr"):
        return indices
    if device.type != "cpu":
        indices = indices.cpu()
    if indices.element_size() != 8:
        indices = indices.long()
    return indices if indices.is_contiguous() else indices.contiguous()
