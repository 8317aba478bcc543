# SPDX-License-Identifier: Apache-2.0
"""What a storage has open: the namespace, a library pool per host pool, registered memory.

Each step of a registration is undone when a later one fails, in reverse order; closing everything
leaves no registration behind (the library's statistics count them).
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import kvcellar
from kvcellar.sglang import identity, pools
from kvcellar.sglang.handles import HostPool
from kvcellar.sglang.settings import Settings, whole

logger = logging.getLogger("kvcellar.sglang")

KV = "kv"
# What the library says to a geometry that it cannot take; another plan may do.
REFUSALS = (errno.EINVAL, errno.ENOTSUP)


class Registry:
    """Control path only, one call at a time; `pools` may be read by other threads meanwhile."""

    def __init__(self, settings: Settings, store: Any) -> None:
        self.settings = settings
        self.store = store
        self.namespace: Any = None
        self.pools: dict[str, HostPool] = {}
        self._regions: list[Any] = []
        self._tensor_namespace: Any = None
        self._cache_dtype: str | None = None
        self._lock = threading.RLock()

    def open_anchor(self, host_pool: Any) -> HostPool:
        """Opens the namespace, then the pool "kv". When one is refused nothing is open."""
        with self._lock:
            self.close()
            try:
                self._open_namespace(host_pool)
                return self.open_pool(KV, host_pool)
            except BaseException:
                self.close()
                raise

    def open_pool(self, name: str, host_pool: Any) -> HostPool:
        """Opens one host pool by the first plan that the library accepts, and registers its memory.
        All of it or, when it raises, nothing."""
        with self._lock:
            pool = self._open_first(name, host_pool, self._plans(name, host_pool))
            try:
                regions = self._register(pool.plan.regions)
            except BaseException:
                pool.close()
                raise
            old = self.pools.get(name)
            self.pools = self.pools | {name: pool}
            self._regions.extend(regions)
            if old is not None:
                old.close()
            return pool

    def tensor_namespace(self) -> Any:
        """Where single tensors are: the pools' namespace or, before there is one, one without page
        size and dtype."""
        namespace = self.namespace or self._tensor_namespace
        if namespace is not None:
            return namespace
        with self._lock:
            if self._tensor_namespace is None:
                self._tensor_namespace = self.store.namespace(
                    self.settings.storage_config.model_name,
                    identity=self._identity(identity.server_args()),
                    page_tokens=1,
                    **self.settings.place,
                )
            return self._tensor_namespace

    def namespaces(self) -> list[Any]:
        """Those that are open."""
        return [ns for ns in (self.namespace, self._tensor_namespace) if ns is not None]

    def close(self) -> None:
        """Pools, memory, namespaces: the reverse of the order in which they were opened."""
        with self._lock:
            for pool in reversed(self.pools.values()):
                attempt(f"pool {pool.name}", pool.close)
            self.pools = {}
            for region in reversed(self._regions):
                attempt("registered memory", region.close)
            self._regions = []
            for namespace in self.namespaces():
                attempt("a namespace", namespace.close)
            self.namespace = self._tensor_namespace = None

    # ------------------------------------------------------------ steps

    def _open_namespace(self, host_pool: Any) -> None:
        cfg = self.settings.storage_config
        args = identity.server_args()
        self._cache_dtype = identity.kv_cache_dtype(args)
        self.namespace = self.store.namespace(
            cfg.model_name,
            identity=self._identity(args),
            dtype=pools.dtype_text(host_pool, self._cache_dtype, tensors=False),
            page_tokens=int(getattr(host_pool, "page_size", 1) or 1),
            logical_page_tokens=whole(cfg, "logical_page_size", 0),
            **self.settings.place,
        )

    def _identity(self, args: Any) -> str | None:
        """Derived, unless the operator gives one. None: the library warns that it is unset."""
        if self.settings.option("identity", None):
            return None
        try:
            return identity.derive(args)
        except identity.UnknownIdentity as error:
            logger.info("kvcellar: no identity of the weights: %s", error)
        except Exception as error:  # never a reason to serve without a cache
            logger.info("kvcellar: no identity of the weights: %s", error, exc_info=True)
        return None

    def _plans(self, name: str, host_pool: Any) -> Iterable[pools.Plan]:
        return pools.plans(
            host_pool,
            anchor=name == KV,
            groups=self._groups_of(name, host_pool),
            direct_io=self.settings.direct_io,
            peer_naming=self.settings.peer_naming,
        )

    def _open_first(self, name: str, host_pool: Any, plans: Iterable[pools.Plan]) -> HostPool:
        refused: kvcellar.Error | None = None
        per_rank = self._per_rank(name, host_pool)
        try:
            for plan in plans:
                if refused is not None:
                    plan = replace(plan, reason=plan.reason or str(refused))
                pool = HostPool(kvcellar, name, host_pool, plan)
                dtype = self._dtype_of(host_pool, plan)
                try:
                    pool.open(self.namespace, dtype, per_rank, self._marker_bytes)
                    return pool
                except kvcellar.Error as error:
                    if error.errno not in REFUSALS:
                        raise
                    refused = refused or error
        except pools.NoPlan as error:
            if refused is None:
                kind, layout = type(host_pool).__name__, getattr(host_pool, "layout", None)
                text = f"pool {name} ({kind}, layout {layout}): no way to its pages: {error}"
                raise kvcellar.ConfigError(errno.EINVAL, text) from None
        raise refused or AssertionError("plans() ends with NoPlan")

    def _dtype_of(self, host_pool: Any, plan: pools.Plan) -> str | None:
        """None: what the namespace says."""
        if plan.kind == pools.MARKER:
            return None
        dtype = pools.dtype_text(host_pool, self._cache_dtype, tensors=True)
        return f"{dtype}{plan.format_tag}" if dtype or plan.format_tag else None

    @property
    def _marker_bytes(self) -> int:
        """What HiCacheNixl stores for a page without bytes; in our own naming none."""
        if not self.settings.peer_naming:
            return 0
        return pools.MARKER_BYTES if self.settings.direct_io else 1

    def _groups_of(self, name: str, host_pool: Any) -> int:
        """Side pools that have no heads to split stay whole."""
        if name != KV and getattr(host_pool, "layout", "") != "page_head":
            return 1
        return self.settings.head_groups

    def _per_rank(self, name: str, host_pool: Any) -> bool | None:
        """None: as the library decides by the name. True: its pages differ between tp ranks though
        those of KV do not, or it is not split by heads though KV is."""
        if name == KV:
            return None
        if self.settings.head_groups > 1 and self._groups_of(name, host_pool) == 1:
            return True
        replicated = self.settings.is_mla and self.settings.place["tp_size"] > 1
        if replicated and pools.has_heads_of_this_rank(host_pool):
            logger.warning(
                "kvcellar: pool %s has other attention heads on each rank and is stored per rank; "
                "SGLang lets only the first rank write it, so the others find nothing",
                name,
            )
            return True
        return None

    def _register(self, regions: Sequence[tuple[int, int]]) -> list[Any]:
        """Registers memory; all regions or none. What another pool registered is left to it."""
        made: list[Any] = []
        try:
            for address, nbytes in regions:
                try:
                    made.append(self.store.register_memory(address, nbytes))
                except kvcellar.Error as error:
                    if error.errno != errno.EEXIST:
                        raise
        except BaseException:
            for region in reversed(made):
                attempt("registered memory", region.close)
            raise
        return made


def attempt(what: str, close: Callable[[], None]) -> None:
    """Closes something on the way down, where an error can only be told."""
    try:
        close()
    except kvcellar.Error as error:
        logger.error("kvcellar: closing %s: %s", what, error)
