# SPDX-License-Identifier: Apache-2.0
"""KvCellarStorage: the class that SGLang loads. What SGLang hands over becomes one call of the
library per batch; what the library answers becomes what SGLang expects.

Threads: SGLang calls exists, get and set from three threads of its own at the same time, the rest
from the scheduler's. Errors: __init__ and register_mem_pool_host raise what is wrong with the
configuration or the pool; nothing after them raises. A call that fails is logged, at most once in
30 s per kind, and its pages are misses or not stored.
"""

from __future__ import annotations

import errno
import json
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import kvcellar
from kvcellar.sglang import pools
from kvcellar.sglang.base import (
    HiCacheStorage,
    PoolName,
    new_pool_transfer_result,
    new_storage_metrics,
    text_of,
)
from kvcellar.sglang.calls import (
    Calls,
    Reports,
    all_false,
    all_none,
    data_path,
    no_pool,
    start_logging,
    switch_interval,
)
from kvcellar.sglang.handles import Deadline, HostPool, Misuse
from kvcellar.sglang.registry import KV, Registry, attempt
from kvcellar.sglang.settings import Settings
from kvcellar.sglang.tensors import Target, TensorError, source_of

logger = logging.getLogger("kvcellar.sglang")

CLOSE_SECONDS = 9.0
STATS = ("prefetch_pgs", "backup_pgs", "prefetch_bandwidth", "backup_bandwidth")
STATS_KEPT = 4096
GIB = float(1 << 30)


class KvCellarStorage(HiCacheStorage):
    """HiCache storage on kvcellar.

    storage_config: SGLang's HiCacheStorageConfig; its extra_config is the library's configuration
    (docs/config.md), with SGLang's own keys in it and one of this adapter: switch_interval_us, the
    interpreter's switch interval in microseconds while the storage is attached (default: leave it).

    Raises kvcellar.ConfigError and kvcellar.Error when the configuration is wrong or no root can be
    opened.
    """

    def __init__(self, storage_config: Any, kwargs: Any = None) -> None:
        self.storage_config = storage_config
        self.is_mla_model = bool(storage_config.is_mla_model)
        self.registered_pools: dict[Any, Any] = {}
        self._settings = Settings(storage_config)
        self.backup_skip = not self._settings.is_writer
        self._calls = Calls()
        self._reports = Reports()
        self._stats_lock = threading.RLock()  # a signal handler may come back to it
        self._stats: dict[str, deque] = {name: deque(maxlen=STATS_KEPT) for name in STATS}
        start_logging()
        self.store = kvcellar.Store(self._settings.config)
        self._registry = Registry(self._settings, self.store)
        self._switched = self._settings.switch_seconds is not None
        if self._switched:
            switch_interval.acquire(self._settings.switch_seconds)

    @property
    def namespace(self) -> Any:
        """The open namespace, or None before register_mem_pool_host() and after close()."""
        return self._registry.namespace

    @property
    def is_zero_copy(self) -> bool:
        """Whether KV pages move without a copy; False before register_mem_pool_host()."""
        pool = self._registry.pools.get(KV)
        return pool is not None and pool.zero_copy

    # ------------------------------------------------------------ registration

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """The anchor pool: opens the namespace and the pool "kv". Raises kvcellar.Error when either
        is refused; then nothing of it is left behind."""
        if self._calls.closed:
            raise kvcellar.ConfigError(errno.EINVAL, "the storage is closed: no pool is registered")
        pool = self._registry.open_anchor(mem_pool_host)
        self.mem_pool_host = mem_pool_host
        for name, side_pool in self.registered_pools.items():
            if text_of(name) != KV:  # opening the anchor again closed them
                self.register_mem_host_pool_v2(side_pool, name)
        plugin, roots = _where_of(self.store)
        logger.info(
            "kvcellar: mem_pool_device_type %s, is_mla_model %s, tp_rank %d, backup_skip %s, "
            "zero_copy %s, layout %s, %d bytes a page, namespace %s, plugin %s, roots %s",
            getattr(mem_pool_host, "device", "cpu"), self.is_mla_model,
            self.storage_config.tp_rank, self.backup_skip, pool.zero_copy,
            getattr(mem_pool_host, "layout", None), pool.plan.page_bytes, self.namespace.id,
            plugin, ", ".join(roots),
        )  # fmt: skip
        self._warn_copies(pool)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """A side pool, at the start or later. One that cannot be used is named in an error line and
        its pages are misses: SGLang could not undo half an attach."""
        name = text_of(host_pool_name)
        self.registered_pools[host_pool_name] = host_pool
        bound = self._registry.pools.get(name)
        if bound is not None and bound.host_pool is host_pool:
            return
        try:
            if self.namespace is None:
                raise Misuse("no anchor pool is registered")
            pool = self._registry.open_pool(name, host_pool)
        except Exception as error:
            logger.error("kvcellar: pool %s: its pages are not stored: %s", name, error)
            return
        logger.info(
            "kvcellar: pool %s: %d bytes a page, zero_copy %s",
            name, pool.plan.page_bytes, pool.zero_copy,
        )  # fmt: skip
        self._warn_copies(pool)

    def on_host_pools_registered(self) -> None:
        """Nothing is left to do: each pool is ready once it is registered."""

    @staticmethod
    def _warn_copies(pool: HostPool) -> None:
        """Where the library copies it says so itself; here where pages are copied in Python."""
        if pool.plan.kind in (pools.COPY, pools.BUFFERS):
            logger.warning("kvcellar: pool %s is not zero copy: %s", pool.name, pool.copy_reason)

    # ------------------------------------------------------------ v1

    @data_path(all_false)
    def batch_get_v1(
        self, keys: list[str], host_indices: Any, extra_info: Any = None
    ) -> list[bool]:
        """Reads KV pages into the host pool. host_indices: CPU int64, a page's tokens each."""
        return self._timed("get", keys, host_indices, extra_info)

    @data_path(all_false)
    def batch_set_v1(
        self, keys: list[str], host_indices: Any, extra_info: Any = None
    ) -> list[bool]:
        """Stores KV pages. A rank that is not the writer of MLA pages stores nothing: all True."""
        return self._timed("set", keys, host_indices, extra_info)

    def _timed(self, op: str, keys: list[str], host_indices: Any, extra_info: Any) -> list[bool]:
        pool = self._kv()
        start = time.perf_counter()
        done = self._move(op, [(pool, keys, pool.check(keys, host_indices))], extra_info)[0]
        self._count(op, pool, done, time.perf_counter() - start)
        return done

    def _kv(self) -> HostPool:
        pool = self._registry.pools.get(KV)
        if pool is None:
            raise Misuse("register_mem_pool_host() was not called")
        return pool

    def _move(
        self, op: str, requests: Sequence[tuple[HostPool, list[str], Any]], extra_info: Any
    ) -> list[list[bool]]:
        """One call of the library for all pools, but for those whose pages are copied in Python."""
        deadline = Deadline(self._settings.limits_ms)
        how = _chain(extra_info) if op != "exists" else {}
        results: list[Any] = [None] * len(requests)
        direct, places, leases = [], [], []
        try:
            for place, (pool, keys, indices) in enumerate(requests):
                if pool.plan.kind == pools.COPY:
                    continue
                if pool.plan.kind == pools.BUFFERS:
                    leases.append(_lease(pool.host_pool))
                direct.append(pool.transfer(op, keys, indices, **how, **self._timeout(op)))
                places.append(place)
            if direct:
                for place, result in zip(places, self.store.run(direct)):
                    results[place] = result.ok
        finally:
            for lease in reversed(leases):
                if lease is not None:
                    lease.release_layout()
        for place, (pool, keys, indices) in enumerate(requests):
            if results[place] is None:
                results[place] = pool.bounced(self.store, op, keys, indices, deadline, **how)
        return results

    def _timeout(self, op: str) -> dict[str, int]:
        """Nothing where the configured time is short enough, which the library then takes."""
        limit = int(Deadline.CALL_SECONDS * 1000)
        return {"timeout_ms": limit} if self._settings.limits_ms[op] > limit else {}

    # ------------------------------------------------------------ v2

    @data_path(no_pool)
    def batch_get_v2(
        self, transfers: list[Any], extra_info: Any = None
    ) -> dict[Any, list[bool]]:
        """Reads pages of several pools; any number of pages."""
        return self._move_v2("get", transfers, extra_info)

    @data_path(no_pool)
    def batch_set_v2(
        self, transfers: list[Any], extra_info: Any = None
    ) -> dict[Any, list[bool]]:
        """Stores pages of several pools; any number of pages."""
        return self._move_v2("set", transfers, extra_info)

    def _move_v2(
        self, op: str, transfers: list[Any], extra_info: Any
    ) -> dict[Any, list[bool]]:
        transfers = list(transfers or ())
        results = no_pool(transfers)
        names, requests = [], []
        for place, transfer in enumerate(transfers):
            try:
                keys = list(transfer.keys or ())
                pool = self._pool_of(transfer.name)
                indices = pool.check(keys, transfer.host_indices)
                if keys:
                    results[transfer.name] = [False] * len(keys)
                    requests.append((pool, keys, indices))
                    names.append(transfer.name)
            except Exception as error:
                self._report_transfer(op, place, error)
        for name, done in zip(names, self._move_apart(op, requests, extra_info)):
            results[name] = done
        return results

    def _move_apart(
        self, op: str, requests: Sequence[tuple[HostPool, list[str], Any]], extra_info: Any
    ) -> list[list[bool]]:
        """All in one call of the library; when it is refused, each in one, so that what is wrong
        with one is not the others'."""
        if not requests:
            return []
        try:
            return self._move(op, requests, extra_info)
        except Exception:
            if len(requests) == 1:
                raise
        done = []
        for place, request in enumerate(requests):
            try:
                done.extend(self._move(op, [request], extra_info))
            except Exception as error:
                self._report_transfer(op, place, error)
                done.append([False] * len(request[1]))
        return done

    def _report_transfer(self, op: str, place: int, error: Exception) -> None:
        known = isinstance(error, (Misuse, kvcellar.Error))
        what = "" if known else f"{type(error).__name__}: "
        kind = (op, place, type(error).__name__)
        self._reports.report(kind, "batch_%s_v2: transfer %d: %s%s", op, place, what, error)

    def _pool_of(self, name: Any) -> HostPool:
        pool = self._registry.pools.get(text_of(name))
        if pool is None:
            raise Misuse(f"pool {text_of(name)} is not registered")
        return pool

    # ------------------------------------------------------------ exists

    @data_path(lambda key: False)
    def exists(self, key: str) -> bool:
        """Whether a KV page, or a tensor that set() stored, is there under this key."""
        deadline = Deadline(self._settings.limits_ms)
        pool = self._registry.pools.get(KV)
        if pool is not None and self._prefix(pool, [key]):
            return True
        namespace, timeout_ms = self._registry.tensor_namespace(), deadline.timeout_ms("exists")
        found = namespace.exists(self._settings.tensor_pool, key, timeout_ms=timeout_ms)
        return found is not None

    @data_path(lambda keys: 0)
    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """How many leading keys have their KV page."""
        pool = self._registry.pools.get(KV)
        if pool is not None:
            return self._prefix(pool, keys)
        namespace, how = self._registry.tensor_namespace(), self._timeout("exists")
        found = namespace.exists_many(self._settings.tensor_pool, keys, **how)
        return found.index(False) if False in found else len(found)

    def _prefix(self, pool: HostPool, keys: Sequence[str]) -> int:
        if not keys:
            return 0
        found = pool.by_key.exists(keys, stop_at_miss=True, **self._timeout("exists"))
        return int(found.prefix_count)

    @data_path(lambda keys: new_pool_transfer_result(0, {}, []))
    def batch_exists_v2(
        self, keys: list[str], pool_transfers: list[Any] | None = None, extra_info: Any = None
    ) -> Any:
        """Which prefixes of keys every pool can restore: one call of the library for all pools.

        kv_hit_pages is the longest; restorable_prefix_pages has all of them; extra_pool_hit_pages
        each pool's own longest, as SGLang's file backend reports them. BLOCK_GROUPS pools report
        the pages that their leading complete groups cover and limit nothing.
        """
        if not keys:
            return new_pool_transfer_result(0, {}, [])
        asked = list(pool_transfers or ())
        kv, sides = self._look(keys, asked)
        kv_pages = kv.prefix_count
        hits: dict[Any, int] = {PoolName.KV: kv_pages} if kv_pages else {}
        restorable = list(range(1, kv_pages + 1))
        gates: list[tuple[bytes, str, int]] = []
        for transfer, found in zip(asked, sides):
            if not restorable:
                break
            policy = text_of(transfer.hit_policy)
            if policy == "block_groups":
                boundary = _covered_pages(transfer, found, len(keys))
            else:
                present = bytes(kv_pages) if found is None else found.present[:kv_pages]
                gates.append((present, policy, _window(transfer, policy)))
                boundary = kvcellar.policy_prefix(gates[-1:], kv_pages)
                restorable = kvcellar.policy_restorable(gates, kv_pages)
            if boundary:
                hits[transfer.name] = boundary
        return new_pool_transfer_result(restorable[-1] if restorable else 0, hits, restorable)

    def _look(self, keys: list[str], asked: Sequence[Any]) -> tuple[Any, list[Any]]:
        """The exists result of KV and of each transfer's pool; None for those that have none."""
        how = self._timeout("exists")
        runs = [self._exists_transfer(self._kv(), keys, True, how)]
        places = []
        for place, transfer in enumerate(asked):
            name, policy = text_of(transfer.name), text_of(transfer.hit_policy)
            pool = self._registry.pools.get(name)
            if pool is None:
                self._reports.report(name, "batch_exists_v2: pool %s is not registered", name)
                continue
            # Blocks of pages have keys of their own.
            looked = transfer.keys if policy == "block_groups" else keys
            if looked:
                places.append(place)
                runs.append(self._exists_transfer(pool, looked, policy == "all_pages", how))
        found = self.store.run(runs)
        sides: list[Any] = [None] * len(asked)
        for place, result in zip(places, found[1:]):
            sides[place] = result
        return found[0], sides

    @staticmethod
    def _exists_transfer(pool: HostPool, keys: Any, stop: bool, how: dict[str, int]) -> Any:
        return kvcellar.Transfer("exists", pool.by_key, keys, stop_at_miss=stop, **how)

    # ------------------------------------------------------------ tensors

    @data_path(lambda key: None)
    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        """Reads what set() stored into a tensor of the same size; returns the tensor, or None.

        target_location: a tensor of any dtype, shape and strides, or a writable buffer; GPU tensors
        are filled through a copy in host memory. Or an address with target_sizes its bytes: read as
        well, but None is returned, since there is no tensor. Without a target nothing is read.
        """
        if target_location is None:
            self._reports.report("target", "get: without target_location nothing is read")
            return None
        sizes = None if target_sizes is None else [target_sizes]
        return self._read([key], [target_location], sizes)[0]

    @data_path(all_none)
    def batch_get(
        self, keys: list[str], target_locations: Any = None, target_sizes: Any = None
    ) -> list[Any]:
        """get() for several keys: two calls of the library at most."""
        if not keys:
            return []
        if target_locations is None or len(target_locations) != len(keys):
            raise Misuse(f"{len(keys)} keys need {len(keys)} target_locations")
        if target_sizes is not None and len(target_sizes) != len(keys):
            raise Misuse(f"{len(keys)} keys need {len(keys)} target_sizes")
        return self._read(keys, target_locations, target_sizes)

    @data_path(lambda key: False)
    def set(
        self,
        key: str,
        value: Any = None,
        target_location: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        """Stores the bytes of a tensor of any dtype, shape and strides, or of a buffer; GPU tensors
        through a copy in host memory. Or target_sizes bytes at the address target_location.

        Keys are hashes of the content: an object of the same key and size is kept as it is. A
        tensor of exactly a KV page is that KV page, as batch_set_v1() stores it.
        """
        if value is not None:
            return self._write([key], [value], None)
        return self._write([key], [target_location], [target_sizes])

    @data_path(lambda keys: False)
    def batch_set(
        self,
        keys: list[str],
        values: Any = None,
        target_locations: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        """set() for several keys: two calls of the library at most. True when all are stored."""
        if values is not None:
            target_locations, target_sizes = values, None
        if not keys:
            return True
        if target_locations is None or len(target_locations) != len(keys):
            raise Misuse(f"{len(keys)} keys need {len(keys)} values")
        if target_sizes is not None and len(target_sizes) != len(keys):
            raise Misuse(f"{len(keys)} keys need {len(keys)} target_sizes")
        return self._write(keys, target_locations, target_sizes)

    def _read(self, keys: list[str], locations: Any, sizes: Any) -> list[Any]:
        try:
            targets = [
                None if at is None else Target(at, None if sizes is None else sizes[i])
                for i, at in enumerate(locations)
            ]
        except TensorError as error:
            raise Misuse(str(error)) from None
        places = [i for i, target in enumerate(targets) if target is not None]
        ok = self._tensors_move("get", keys, targets, places)
        return [targets[i].finish() if ok[i] else None for i in range(len(keys))]

    def _write(self, keys: list[str], values: Any, sizes: Any) -> bool:
        if self.backup_skip:
            return True
        try:
            sources = [
                source_of(value, None if sizes is None else sizes[i])
                for i, value in enumerate(values)
            ]
        except TensorError as error:
            raise Misuse(str(error)) from None
        ok = self._tensors_move("set", keys, sources, list(range(len(keys))))
        return all(ok)

    def _tensors_move(
        self, op: str, keys: list[str], memory: Sequence[Any], places: Sequence[int]
    ) -> list[bool]:
        """Pages of the KV pool's size go to its objects, the rest to single objects."""
        pool = self._registry.pools.get(KV)
        page_bytes = pool.plan.page_bytes if pool is not None and pool.flat is not None else -1
        pages = [i for i in places if memory[i].nbytes == page_bytes and memory[i].address]
        others = [i for i in places if memory[i].nbytes != page_bytes or not memory[i].address]
        deadline = Deadline(self._settings.limits_ms)
        done = [False] * len(keys)
        if pages:
            start = time.perf_counter()
            at = [memory[i].address for i in pages]
            transfer = pool.flat_transfer(
                op, [keys[i] for i in pages], at, timeout_ms=deadline.timeout_ms(op)
            )
            ok = self.store.run([transfer])[0].ok
            self._count(op, pool, ok, time.perf_counter() - start)
            for i, good in zip(pages, ok):
                done[i] = good
        if others:
            namespace = self._registry.tensor_namespace()
            move = namespace.get_many if op == "get" else namespace.put_many
            errors = move(
                self._settings.tensor_pool,
                [keys[i] for i in others],
                [memory[i].buffer for i in others],
                timeout_ms=deadline.timeout_ms(op),
            )
            for i, error in zip(others, errors):
                done[i] = error == 0
        return done

    # ------------------------------------------------------------ the rest

    def clear(self) -> bool:
        """Removes every page of this namespace, of all ranks and pools, and nothing else. False
        when something could not be removed."""
        return self._clear(None)

    @data_path(lambda _: False)
    def _clear(self, _: None) -> bool:
        cleared = True
        for name in self._clear_names():
            try:
                report = self.store.clear(name)
            except kvcellar.Error as error:
                if error.errno == errno.ENOENT:  # nothing of it was ever stored
                    continue
                raise
            logger.info(
                "kvcellar: cleared %s: %d objects, %d bytes, %d could not be removed",
                name, report["objects"], report["bytes"], report["failed"],
            )  # fmt: skip
            cleared = cleared and not report["failed"]
        return cleared

    def _clear_names(self) -> list[str]:
        """The namespaces; with HiCacheNixl's names, which have none, the model's part of them."""
        if self._settings.peer_naming:
            return [(self.storage_config.model_name or "").replace("/", "-")]
        return [namespace.id for namespace in self._registry.namespaces()]

    def get_stats(self) -> Any:
        """SGLang's StorageMetrics with what happened since the last call: pages and GiB/s of each
        KV batch. None unless SGLang enables metrics of storage."""
        if not self._settings.metrics:
            return None
        metrics = new_storage_metrics()
        with self._stats_lock:
            for name, values in self._stats.items():
                while values:
                    getattr(metrics, name).append(values.popleft())
        return metrics

    def _count(self, op: str, pool: HostPool, done: Sequence[bool], seconds: float) -> None:
        if not self._settings.metrics or (op == "set" and self.backup_skip):
            return
        pages = done.count(True)
        if not pages:
            return
        name = "prefetch" if op == "get" else "backup"
        rate = pages * pool.plan.page_bytes / GIB / max(seconds, 1e-9)
        with self._stats_lock:
            self._stats[f"{name}_pgs"].append(pages)
            self._stats[f"{name}_bandwidth"].append(rate)

    def close(self) -> None:
        """Ends the storage. Calls that are at work finish first, later ones get misses. May be
        called again. Returns in less than 10 s; a call that takes longer closes it when it ends."""
        if not self._calls.close(self._finish, CLOSE_SECONDS):
            logger.error(
                "kvcellar: a call is still at work after %.0f s; it will close the storage",
                CLOSE_SECONDS,
            )

    def _finish(self) -> None:
        self._registry.close()
        switched, self._switched = self._switched, False
        if switched:
            switch_interval.release()
        attempt("the store", self.store.close)


def _window(transfer: Any, policy: str) -> int:
    """Pages that TRAILING_PAGES needs: as many as the transfer has keys."""
    return max(1, len(transfer.keys or ())) if policy == "trailing_pages" else 1


def _covered_pages(transfer: Any, found: Any, span: int) -> int:
    """BLOCK_GROUPS: the FULL pages that the leading complete groups of keys stand for."""
    if found is None:
        return 0
    block, group = max(1, transfer.block_pages), max(1, transfer.group_pages)
    pages = len(found.present)
    covered = kvcellar.policy_prefix([(found.present, "block_groups", group)], pages)
    return min(covered // group * block, span)


def _where_of(store: Any) -> tuple[str, list[str]]:
    """The plugin's name and the paths of the roots, for the log."""
    try:
        described = json.loads(store.describe("json"))
        return str(described["store"]["plugin"]), [root["path"] for root in described["roots"]]
    except Exception:
        return "?", []


def _lease(host_pool: Any) -> Any:
    """Pages of a shared arena stay where they are while it is held."""
    domain = getattr(host_pool, "shared_allocation_domain", None)
    if domain is None or not hasattr(domain, "acquire_layout"):
        return None
    domain.acquire_layout()
    return domain


def _chain(extra_info: Any) -> dict[str, Any]:
    """Where the keys stand in their prefix, when SGLang passes prefix keys."""
    prefix = getattr(extra_info, "prefix_keys", None)
    return {"parent": prefix[-1], "depth": len(prefix)} if prefix else {}
