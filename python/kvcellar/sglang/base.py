# SPDX-License-Identifier: Apache-2.0
"""What the adapter takes from SGLang, or stand-ins of the same shape where SGLang is not installed.

The stand-ins let the class be imported, constructed and tested without SGLang and torch.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

try:
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolName, PoolTransferResult

    HAVE_SGLANG = True
except ImportError:
    HAVE_SGLANG = False

    class PoolName(str, Enum):  # type: ignore[no-redef]
        """The one name that the adapter itself uses."""

        KV = "kv"

    @dataclass
    class PoolTransferResult:  # type: ignore[no-redef]
        """What batch_exists_v2() found."""

        kv_hit_pages: int
        extra_pool_hit_pages: dict
        restorable_prefix_pages: list[int] | None = None

    class HiCacheStorage(ABC):  # type: ignore[no-redef]
        """The methods that a HiCache storage backend has."""

        def register_mem_pool_host(self, mem_pool_host: Any) -> None:
            self.mem_pool_host = mem_pool_host

        def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
            if not hasattr(self, "registered_pools"):
                self.registered_pools = {}
            self.registered_pools[host_pool_name] = host_pool

        def on_host_pools_registered(self) -> None:
            pass

        @abstractmethod
        def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any: ...

        @abstractmethod
        def batch_get(
            self, keys: list[str], target_locations: Any = None, target_sizes: Any = None
        ) -> Any: ...

        @abstractmethod
        def set(
            self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None
        ) -> bool: ...

        @abstractmethod
        def batch_set(
            self,
            keys: list[str],
            values: Any = None,
            target_locations: Any = None,
            target_sizes: Any = None,
        ) -> bool: ...

        @abstractmethod
        def exists(self, key: str) -> bool: ...


@dataclass
class _PlainStorageMetrics:
    prefetch_pgs: list[int] = field(default_factory=list)
    backup_pgs: list[int] = field(default_factory=list)
    prefetch_bandwidth: list[float] = field(default_factory=list)
    backup_bandwidth: list[float] = field(default_factory=list)


def new_storage_metrics() -> Any:
    """An empty StorageMetrics; SGLang's scheduler accepts no other class."""
    if HAVE_SGLANG:
        from sglang.srt.observability.metrics_collector import StorageMetrics

        return StorageMetrics()
    return _PlainStorageMetrics()


def new_pool_transfer_result(
    kv_hit_pages: int, hits: dict, restorable: list[int]
) -> PoolTransferResult:
    """The answer of batch_exists_v2(); an SGLang without restorable prefixes gets none."""
    try:
        return PoolTransferResult(kv_hit_pages, hits, restorable)
    except TypeError:
        return PoolTransferResult(kv_hit_pages, hits)


def text_of(value: Any) -> str:
    """The text of a str enum member, or of anything else."""
    return str(getattr(value, "value", value))
