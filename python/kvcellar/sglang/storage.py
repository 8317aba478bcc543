# SPDX-License-Identifier: Apache-2.0
"""KvCellarStorage: the class that SGLang loads. What SGLang hands over becomes one call of the
library per batch; what the library answers becomes what SGLang expects.

Threads: SGLang calls exists, get and set from three threads of its own at the same time, the rest
from the scheduler's. Errors: __init__ and register_mem_pool_host raise what is wrong with the
configuration or the pool; nothing after them raises. A call that fails is logged, at most once in
30 s per kind, and its pages are misses or not stored.
"""

from __future__ import annotations

import functools
import json
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import kvcellar
from kvcellar.sglang import identity, pools
from kvcellar.sglang.base import (
    HiCacheStorage,
    PoolName,
    new_pool_transfer_result,
    new_storage_metrics,
    text_of,
)
from kvcellar.sglang.handles import Deadline, HostPool, Misuse
from kvcellar.sglang.tensors import Target, TensorError, source_of

logger = logging.getLogger("kvcellar.sglang")
library_logger = logging.getLogger("kvcellar")

KV = "kv"
OPERATIONS = ("exists", "get", "set")
# Options of this adapter, which the library does not have.
SWITCH_INTERVAL = "switch_interval_us"
LOG_SECONDS = 30.0
CLOSE_SECONDS = 9.0
STATS_KEPT = 4096
GIB = float(1 << 30)
LEVELS = (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)


# ---------------------------------------------------------------- small helpers


def _log_line(level: int, text: str) -> None:
    library_logger.log(LEVELS[min(max(level, 0), 3)], "%s", text)


def _start_logging() -> None:
    """Lines of the library go to the logger "kvcellar", from whatever thread they come."""
    kvcellar.set_log(_log_line, 3 if library_logger.isEnabledFor(logging.DEBUG) else 2)


class _SwitchInterval:
    """sys.setswitchinterval() for as long as at least one storage asks for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = 0.0
        self._ours = 0.0

    def acquire(self, seconds: float) -> None:
        with self._lock:
            if self._users == 0:
                self._before = sys.getswitchinterval()
            self._users += 1
            sys.setswitchinterval(seconds)
            self._ours = sys.getswitchinterval()

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            # Somebody else's later choice stays.
            if self._users == 0 and sys.getswitchinterval() == self._ours:
                sys.setswitchinterval(self._before)


_switch_interval = _SwitchInterval()


class _Calls:
    """Counts the calls that are at work, so that close() can wait for them.

    close(finish) runs `finish` once no call is inside: now, when the last one leaves within the
    time, or by that one later.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._inside = 0
        self._closed = False
        self._finish: Callable[[], None] | None = None
        self._finished = False

    def enter(self) -> bool:
        with self._condition:
            if self._closed:
                return False
            self._inside += 1
            return True

    def leave(self) -> None:
        with self._condition:
            self._inside -= 1
            run = self._take_finish()
        self._run(run)

    def close(self, finish: Callable[[], None], seconds: float) -> bool:
        """True when it is finished. A second call only waits for the first."""
        with self._condition:
            if not self._closed:
                self._closed = True
                self._finish = finish
            run = self._take_finish()
        self._run(run)
        with self._condition:
            return self._condition.wait_for(lambda: self._finished, seconds)

    @property
    def closed(self) -> bool:
        return self._closed

    def _take_finish(self) -> Callable[[], None] | None:
        if self._inside or not self._closed:
            return None
        run, self._finish = self._finish, None
        return run

    def _run(self, run: Callable[[], None] | None) -> None:
        if run is None:
            return
        try:
            run()
        finally:
            with self._condition:
                self._finished = True
                self._condition.notify_all()


class _Reports:
    """Errors of the data path: each kind is logged at once, then counted, at most once in 30 s."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds: dict[Any, tuple[float, int]] = {}

    def report(self, kind: Any, text: str, *args: Any, exc_info: bool = False) -> None:
        now = time.monotonic()
        with self._lock:
            last, silent = self._kinds.get(kind, (None, 0))
            if last is not None and now - last < LOG_SECONDS:
                self._kinds[kind] = (last, silent + 1)
                return
            self._kinds[kind] = (now, 0)
        if silent:
            text += f" ({silent} more since the last such line)"
        logger.error(text, *args, exc_info=exc_info)


def _data_path(default: Callable[..., Any]) -> Callable[..., Any]:
    """A method that never raises: after close(), and when something is wrong, it returns
    default(first argument)."""

    def decorate(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
            first = args[0] if args else next(iter(kwargs.values()), None)
            if not self._calls.enter():
                return default(first)
            try:
                return method(self, *args, **kwargs)
            except Misuse as error:
                self._reports.report(str(error), "%s: %s", method.__name__, error)
            except kvcellar.Error as error:
                kind = (method.__name__, error.errno)
                self._reports.report(kind, "%s: %s", method.__name__, error)
            except Exception as error:
                kind = (method.__name__, type(error).__name__)
                self._reports.report(kind, "%s: %s", method.__name__, error, exc_info=True)
            finally:
                self._calls.leave()
            return default(first)

        return guarded

    return decorate


def _all_false(keys: Any) -> list[bool]:
    return [False] * len(keys or ())


def _all_none(keys: Any) -> list[None]:
    return [None] * len(keys or ())


def _no_pool(transfers: Any) -> dict[Any, list[bool]]:
    return {t.name: [False] * len(t.keys or ()) for t in transfers or ()}


def _chain(extra_info: Any) -> dict[str, Any]:
    """Where the keys stand in their prefix, when SGLang passes prefix keys."""
    prefix = getattr(extra_info, "prefix_keys", None)
    return {"parent": prefix[-1], "depth": len(prefix)} if prefix else {}


# ---------------------------------------------------------------- the storage


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
        self.backup_skip = not _is_writer(storage_config)
        self.registered_pools: dict[Any, Any] = {}
        self.namespace: Any = None
        self._calls = _Calls()
        self._reports = _Reports()
        self._lock = threading.RLock()
        self._pools: dict[str, HostPool] = {}
        self._regions: list[Any] = []
        self._tensor_namespace: Any = None
        self._metrics = bool(getattr(storage_config, "enable_storage_metrics", False))
        self._stats_lock = threading.Lock()
        self._stats = {name: deque(maxlen=STATS_KEPT) for name in _STATS}
        self._cache_dtype: str | None = None
        self._switching = False
        config = dict(getattr(storage_config, "extra_config", None) or {})
        interval = _switch_seconds(config.pop(SWITCH_INTERVAL, None))
        _start_logging()
        self._config = config
        self._options = _options_of(config)
        self._limits_ms = {op: int(self._option(f"{op}_timeout_ms", 5000)) for op in OPERATIONS}
        self._tensor_pool = _tensor_pool_name(storage_config)
        self.store = kvcellar.Store(config or None)
        if interval is not None:
            _switch_interval.acquire(interval)
            self._switching = True

    # ------------------------------------------------------------ registration

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """The anchor pool: opens the namespace and the pool "kv". Raises when either is refused;
        then nothing of it is left behind."""
        with self._lock:
            self._require_open()
            kept, self.mem_pool_host = getattr(self, "mem_pool_host", None), mem_pool_host
            try:
                self._open_namespace(mem_pool_host)
                pool = self._bind(KV, mem_pool_host, anchor=True)
            except BaseException:
                self.mem_pool_host = kept
                self._close_namespace()
                raise
        self._describe(pool)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """A side pool, at the start or later. One that cannot be used is named in an error line,
        and its pages are misses: SGLang could not undo half an attach."""
        name = text_of(host_pool_name)
        with self._lock:
            self.registered_pools[host_pool_name] = host_pool
            bound = self._pools.get(name)
            if bound is not None and bound.host_pool is host_pool:
                return
            try:
                self._require_open()
                if self.namespace is None:
                    raise Misuse("the anchor pool is not registered")
                pool = self._bind(name, host_pool, anchor=name == KV)
            except Exception as error:
                logger.error("pool %s: its pages are not stored: %s", name, error)
                return
        logger.info(
            "kvcellar: pool %s: %d bytes a page, zero_copy %s",
            name, pool.plan.page_bytes, pool.zero_copy,
        )
        self._warn_copies(pool)

    def on_host_pools_registered(self) -> None:
        """Nothing is left to do: each pool is ready once it is registered."""

    def _require_open(self) -> None:
        if self._calls.closed:
            raise Misuse("the storage is closed")

    def _open_namespace(self, pool: Any) -> None:
        if self.namespace is not None:
            self._close_namespace()
        cfg = self.storage_config
        args = identity.server_args()
        cache_dtype = identity.kv_cache_dtype(args)
        self._cache_dtype = cache_dtype
        self.namespace = self.store.namespace(
            cfg.model_name,
            identity=self._identity(args),
            dtype=pools.dtype_text(pool, cache_dtype, tensors=False),
            page_tokens=int(getattr(pool, "page_size", 1) or 1),
            logical_page_tokens=int(getattr(cfg, "logical_page_size", None) or 0),
            **_place_of(cfg),
        )

    def _identity(self, args: Any) -> str | None:
        """Derived, unless the operator gives one. None: the library warns that it is unset."""
        if self._option("identity", None):
            return None
        try:
            return identity.derive(args)
        except identity.UnknownIdentity as error:
            logger.info("kvcellar: no identity of the weights: %s", error)
        except Exception as error:
            logger.info("kvcellar: no identity of the weights: %s", error, exc_info=True)
        return None

    def _bind(self, name: str, host_pool: Any, *, anchor: bool) -> HostPool:
        """Opens one host pool by the first plan that the library accepts, and registers its memory.
        Everything or nothing."""
        groups = self._groups_of(host_pool, anchor)
        per_rank = self._per_rank(name, host_pool, groups)
        found = pools.plans(
            host_pool,
            anchor=anchor,
            groups=groups,
            direct_io=bool(self._option("use_direct_io", True)),
            peer_naming=self._peer_naming,
        )
        pool = self._open_first(name, host_pool, found, per_rank)
        try:
            regions = self._register(pool.plan.regions)
        except BaseException:
            pool.close()
            raise
        old = self._pools.get(name)
        self._pools[name] = pool
        self._regions.extend(regions)
        if old is not None:
            old.close()
        return pool

    def _open_first(
        self, name: str, host_pool: Any, found: Iterable[pools.Plan], per_rank: bool | None
    ) -> HostPool:
        refused: Exception | None = None
        plans = iter(found)
        while True:
            try:
                plan = next(plans)
            except pools.NoPlan as error:
                if refused is not None:
                    raise refused
                raise kvcellar.ConfigError(
                    22, f"pool {name} ({type(host_pool).__name__}, layout "
                    f"{getattr(host_pool, 'layout', None)}): no way to its pages: {error}"
                ) from None
            pool = HostPool(kvcellar, name, host_pool, plan)
            try:
                pool.open(self.namespace, self._dtype_of(host_pool, plan), per_rank,
                          self._marker_bytes)
            except kvcellar.Error as error:
                refused = refused or error
                continue
            return pool

    def _dtype_of(self, host_pool: Any, plan: pools.Plan) -> str | None:
        """None for pools that hold what the namespace says."""
        if plan.kind == pools.MARKER:
            return None
        dtype = pools.dtype_text(host_pool, self._cache_dtype, tensors=True)
        return f"{dtype}{plan.format_tag}" if dtype or plan.format_tag else None

    def _groups_of(self, host_pool: Any, anchor: bool) -> int:
        """Head groups per page on this rank; 1 for side pools that have none."""
        cfg = self.storage_config
        if not getattr(cfg, "should_split_heads", False) or self.is_mla_model:
            return 1
        if not anchor and getattr(host_pool, "layout", "") != "page_head":
            return 1
        return int(cfg.tp_lcm_size) // int(cfg.tp_size)

    def _per_rank(self, name: str, host_pool: Any, groups: int) -> bool | None:
        """None: as the library decides by the name. True: its pages differ between tp ranks though
        KV does not, or it is not split by heads though KV is."""
        cfg = self.storage_config
        if name == KV:
            return None
        if groups == 1 and getattr(cfg, "should_split_heads", False):
            return True
        if self.is_mla_model and int(cfg.tp_size) > 1 and pools.has_heads_of_this_rank(host_pool):
            logger.warning(
                "kvcellar: pool %s has attention heads of its own on each rank: stored per rank; "
                "SGLang lets only the first rank write it", name,
            )
            return True
        return None

    def _register(self, regions: Sequence[tuple[int, int]]) -> list[Any]:
        """Registers memory; all regions or none. What is registered already is left alone."""
        made: list[Any] = []
        try:
            for at, nbytes in regions:
                try:
                    made.append(self.store.register_memory(at, nbytes))
                except kvcellar.Error as error:
                    if error.errno != 17:  # EEXIST: of a pool that shares this memory
                        raise
        except BaseException:
            for region in reversed(made):
                region.close()
            raise
        return made

    def _describe(self, pool: HostPool) -> None:
        plugin, roots = _where_of(self.store)
        logger.info(
            "kvcellar: mem_pool_device_type %s, is_mla_model %s, tp_rank %d, backup_skip %s, "
            "zero_copy %s, layout %s, %d bytes a page, namespace %s, plugin %s, roots %s",
            getattr(pool.host_pool, "device", "cpu"), self.is_mla_model,
            self.storage_config.tp_rank, self.backup_skip, pool.zero_copy,
            getattr(pool.host_pool, "layout", None), pool.plan.page_bytes, self.namespace.id,
            plugin, ", ".join(roots),
        )
        self._warn_copies(pool)

    def _warn_copies(self, pool: HostPool) -> None:
        """The library says so itself where it copies; here where pages are copied in Python."""
        if pool.plan.kind in (pools.COPY, pools.BUFFERS):
            logger.warning(
                "kvcellar: pool %s is not zero copy: %s", pool.name, pool.copy_reason
            )

    @property
    def is_zero_copy(self) -> bool:
        """Whether KV pages move without a copy; False before register_mem_pool_host()."""
        pool = self._pools.get(KV)
        return pool is not None and pool.zero_copy

    def _option(self, name: str, default: Any) -> Any:
        return self._options.get(name, {}).get("value", default)

    @property
    def _peer_naming(self) -> bool:
        return self._option("naming", "kvcellar") == "nixl"

    @property
    def _marker_bytes(self) -> int:
        """What HiCacheNixl stores for a page without bytes; in our naming none."""
        if not self._peer_naming:
            return 0
        return pools.MARKER_BYTES if self._option("use_direct_io", True) else 1

    # ------------------------------------------------------------ v1

    @_data_path(_all_false)
    def batch_get_v1(
        self, keys: list[str], host_indices: Any, extra_info: Any = None
    ) -> list[bool]:
        """Reads KV pages into the host pool. host_indices: CPU int64, a page's tokens each."""
        return self._timed("get", keys, host_indices, extra_info)

    @_data_path(_all_false)
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
        pool = self._pools.get(KV)
        if pool is None:
            raise Misuse("register_mem_pool_host() was not called")
        return pool

    def _move(
        self, op: str, requests: Sequence[tuple[HostPool, list[str], Any]], extra_info: Any
    ) -> list[list[bool]]:
        """One call of the library for all pools, but for those whose pages are copied in Python."""
        deadline = Deadline(self._limits_ms)
        how = _chain(extra_info) if op == "set" else {}
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
                results[place] = self._bounce(op, pool, keys, indices, deadline, how)
        return results

    def _bounce(
        self, op: str, pool: HostPool, keys: list[str], indices: Any, deadline: Deadline, how: Any
    ) -> list[bool]:
        if op == "set" and self.backup_skip and pool.name != "mamba":
            return [True] * len(keys)
        return pool.bounced(self.store, op, keys, indices, deadline, **how)

    def _timeout(self, op: str) -> dict[str, int]:
        """Nothing where the configured time is short enough, which the library then takes."""
        limit = int(Deadline.CALL_SECONDS * 1000)
        return {"timeout_ms": limit} if self._limits_ms[op] > limit else {}

    # ------------------------------------------------------------ v2

    @_data_path(_no_pool)
    def batch_get_v2(
        self, transfers: list[Any], extra_info: Any = None
    ) -> dict[Any, list[bool]]:
        """Reads pages of several pools; any number of pages."""
        return self._move_v2("get", transfers, extra_info)

    @_data_path(_no_pool)
    def batch_set_v2(
        self, transfers: list[Any], extra_info: Any = None
    ) -> dict[Any, list[bool]]:
        """Stores pages of several pools; any number of pages."""
        return self._move_v2("set", transfers, extra_info)

    def _move_v2(
        self, op: str, transfers: list[Any], extra_info: Any
    ) -> dict[Any, list[bool]]:
        results = _no_pool(transfers)
        names, requests = [], []
        for transfer in transfers:
            keys = list(transfer.keys or ())
            try:
                pool = self._pool_of(transfer.name)
                indices = pool.check(keys, transfer.host_indices)
            except Misuse as error:
                self._reports.report(str(error), "batch_%s_v2: %s", op, error)
                continue
            if keys:
                names.append(transfer.name)
                requests.append((pool, keys, indices))
        if requests:
            results.update(zip(names, self._move(op, requests, extra_info)))
        return results

    def _pool_of(self, name: Any) -> HostPool:
        pool = self._pools.get(text_of(name))
        if pool is None:
            raise Misuse(f"pool {text_of(name)} is not registered")
        return pool

    # ------------------------------------------------------------ exists

    @_data_path(lambda key: False)
    def exists(self, key: str) -> bool:
        """Whether a KV page, or a tensor that set() stored, is there under this key."""
        pool = self._pools.get(KV)
        if pool is not None and self._prefix(pool, [key]):
            return True
        return self._tensors().exists(self._tensor_pool, key) is not None

    @_data_path(lambda keys: 0)
    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """How many leading keys have their KV page."""
        pool = self._pools.get(KV)
        if pool is not None:
            return self._prefix(pool, keys)
        found = self._tensors().exists_many(self._tensor_pool, keys)
        return found.index(False) if False in found else len(found)

    def _prefix(self, pool: HostPool, keys: Sequence[str]) -> int:
        if not keys:
            return 0
        found = pool.by_key.exists(keys, stop_at_miss=True, **self._timeout("exists"))
        return int(found.prefix_count)

    @_data_path(lambda keys: new_pool_transfer_result(0, {}, []))
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
        present = self._present(keys, asked)
        kv_pages = present[0].prefix_count
        hits: dict[Any, int] = {PoolName.KV: kv_pages} if kv_pages else {}
        restorable = list(range(1, kv_pages + 1))
        gates: list[tuple[bytes, str, int]] = []
        for transfer, found in zip(asked, present[1:]):
            if not restorable:
                break
            policy = text_of(transfer.hit_policy)
            if policy == "block_groups":
                boundary = _covered_pages(transfer, found, len(keys))
            else:
                gate = (found.present[:kv_pages], policy, _window(transfer, policy))
                boundary = kvcellar.policy_prefix([gate], kv_pages)
                gates.append(gate)
                restorable = kvcellar.policy_restorable(gates, kv_pages)
            if boundary:
                hits[transfer.name] = boundary
        return new_pool_transfer_result(restorable[-1] if restorable else 0, hits, restorable)

    def _present(self, keys: list[str], asked: Sequence[Any]) -> list[Any]:
        """One exists result for KV, then one per transfer."""
        how = self._timeout("exists")
        runs = [self._exists_transfer(self._kv(), keys, True, how)]
        for transfer in asked:
            pool = self._pools.get(text_of(transfer.name))
            if pool is None:
                text = f"pool {text_of(transfer.name)} is not registered"
                self._reports.report(text, "batch_exists_v2: %s", text)
                continue
            policy = text_of(transfer.hit_policy)
            own = transfer.keys if policy == "block_groups" else None
            stop = policy == "all_pages"
            runs.append(self._exists_transfer(pool, own or keys, stop, how))
        found = iter(self.store.run(runs))
        results = [next(found)]
        for transfer in asked:
            known = text_of(transfer.name) in self._pools
            results.append(next(found) if known else _Absent(len(keys)))
        return results

    @staticmethod
    def _exists_transfer(pool: HostPool, keys: Any, stop: bool, how: dict[str, int]) -> Any:
        return kvcellar.Transfer("exists", pool.by_key, keys, stop_at_miss=stop, **how)

    # ------------------------------------------------------------ tensors

    @_data_path(lambda key: None)
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

    @_data_path(_all_none)
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

    @_data_path(lambda key: False)
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

    @_data_path(lambda keys: False)
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
        pool = self._pools.get(KV)
        page_bytes = pool.plan.page_bytes if pool is not None and pool.flat is not None else -1
        pages = [i for i in places if memory[i].nbytes == page_bytes and memory[i].address]
        others = [i for i in places if memory[i].nbytes != page_bytes or not memory[i].address]
        deadline = Deadline(self._limits_ms)
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
            move = self._tensors().get_many if op == "get" else self._tensors().put_many
            errors = move(
                self._tensor_pool,
                [keys[i] for i in others],
                [memory[i].buffer for i in others],
                timeout_ms=deadline.timeout_ms(op),
            )
            for i, error in zip(others, errors):
                done[i] = error == 0
        return done

    def _tensors(self) -> Any:
        """The namespace of single tensors: the pools' own, or, before there is one, one without a
        page size and dtype."""
        namespace = self.namespace or self._tensor_namespace
        if namespace is not None:
            return namespace
        with self._lock:
            if self._tensor_namespace is None:
                self._tensor_namespace = self.store.namespace(
                    self.storage_config.model_name,
                    identity=self._identity(identity.server_args()),
                    page_tokens=1,
                    **_place_of(self.storage_config),
                )
            return self._tensor_namespace

    # ------------------------------------------------------------ the rest

    def clear(self) -> bool:
        """Removes every page of this namespace, of all ranks and pools, and nothing else."""
        return bool(self._clear(None))

    @_data_path(lambda _: False)
    def _clear(self, _: None) -> bool:
        cleared = True
        for namespace in (self.namespace, self._tensor_namespace):
            if namespace is None:
                continue
            try:
                report = namespace.clear()
            except FileNotFoundError:  # nothing of it was ever stored
                continue
            except kvcellar.Error as error:
                if error.errno == 2:
                    continue
                raise
            logger.info(
                "kvcellar: cleared %s: %d objects, %d bytes, %d could not be removed",
                namespace.id, report["objects"], report["bytes"], report["failed"],
            )
            cleared = cleared and not report["failed"]
        return cleared

    def get_stats(self) -> Any:
        """SGLang's StorageMetrics with what happened since the last call: pages and GiB/s of each
        KV batch. None unless SGLang enables metrics of storage."""
        if not self._metrics:
            return None
        metrics = new_storage_metrics()
        with self._stats_lock:
            for name, values in self._stats.items():
                getattr(metrics, name).extend(values)
                values.clear()
        return metrics

    def _count(self, op: str, pool: HostPool, done: Sequence[bool], seconds: float) -> None:
        if not self._metrics or (op == "set" and self.backup_skip):
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
        with self._lock:
            self._close_namespace()
            if self._switching:
                self._switching = False
                _switch_interval.release()
            self._attempt("the store", self.store.close)

    def _close_namespace(self) -> None:
        """Pools, registered memory, namespaces: the reverse order of their making."""
        for pool in reversed(self._pools.values()):
            self._attempt(f"pool {pool.name}", pool.close)
        self._pools = {}
        for region in reversed(self._regions):
            self._attempt("registered memory", region.close)
        self._regions = []
        for namespace in (self.namespace, self._tensor_namespace):
            if namespace is not None:
                self._attempt("the namespace", namespace.close)
        self.namespace = self._tensor_namespace = None

    @staticmethod
    def _attempt(what: str, close: Callable[[], None]) -> None:
        try:
            close()
        except kvcellar.Error as error:
            logger.error("kvcellar: closing %s: %s", what, error)


_STATS = ("prefetch_pgs", "backup_pgs", "prefetch_bandwidth", "backup_bandwidth")


class _Absent:
    """The exists result of a pool that is not known."""

    prefix_count = 0

    def __init__(self, pages: int) -> None:
        self.present = bytes(pages)


def _window(transfer: Any, policy: str) -> int:
    """Pages that TRAILING_PAGES needs: as many as the transfer has keys."""
    return max(1, len(transfer.keys or ())) if policy == "trailing_pages" else 1


def _covered_pages(transfer: Any, found: Any, span: int) -> int:
    """BLOCK_GROUPS: FULL pages that the leading complete groups of keys stand for."""
    block = int(getattr(transfer, "block_pages", 0) or 0)
    group = int(getattr(transfer, "group_pages", 0) or 0) or block or 1
    pages = len(found.present)
    covered = kvcellar.policy_prefix([(found.present, "block_groups", group)], pages)
    return min(covered // group * (block or group), span)


def _is_writer(cfg: Any) -> bool:
    if not cfg.is_mla_model:
        return True
    return int(cfg.tp_rank) == int(getattr(cfg, "dcp_rank", 0) or 0)


def _place_of(cfg: Any) -> dict[str, Any]:
    """What the namespace needs to know of the parallel layout. dp_rank is not in it: replicas of
    one model share what they store."""
    tp_size = int(cfg.tp_size)
    lcm = int(getattr(cfg, "tp_lcm_size", None) or 0)
    split = bool(getattr(cfg, "should_split_heads", False)) or lcm == tp_size
    return {
        "is_mla": bool(cfg.is_mla_model),
        "tp_size": tp_size,
        "tp_rank": int(cfg.tp_rank),
        "tp_lcm_size": lcm if split and not cfg.is_mla_model else 0,
        "pp_size": int(getattr(cfg, "pp_size", 1) or 1),
        "pp_rank": int(getattr(cfg, "pp_rank", 0) or 0),
        "cp_size": int(getattr(cfg, "attn_cp_size", 1) or 1),
        "cp_rank": int(getattr(cfg, "attn_cp_rank", 0) or 0),
        "dcp_size": int(getattr(cfg, "dcp_size", 1) or 1),
        "dcp_rank": int(getattr(cfg, "dcp_rank", 0) or 0),
        "is_writer": _is_writer(cfg),
    }


def _tensor_pool_name(cfg: Any) -> str:
    """Single objects have no ranks in their names; tensors of ranks that differ need them."""
    place = _place_of(cfg)
    name = "tensor"
    for kind in ("tp", "pp", "cp", "dcp"):
        size, rank = place[f"{kind}_size"], place[f"{kind}_rank"]
        if size > 1 and not (kind == "tp" and place["is_mla"]):
            name += f"-{kind[0]}{rank}-{size}"
    return name if len(name) <= 32 else f"tensor-{hash_text(name)}"


def hash_text(text: str) -> str:
    import hashlib

    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _options_of(config: dict[str, Any]) -> dict[str, Any]:
    """The effective options by name. Raises kvcellar.ConfigError."""
    return dict(json.loads(kvcellar.config_describe(config or None, json=True))["options"])


def _switch_seconds(value: Any) -> float | None:
    if value is None:
        return None
    try:
        seconds = float(value) / 1e6
    except (TypeError, ValueError):
        seconds = 0.0
    if isinstance(value, bool) or not 1e-6 <= seconds <= 1.0:
        raise kvcellar.ConfigError(
            22, f"{SWITCH_INTERVAL} = {value!r}: expected microseconds, 1 to 1000000"
        )
    return seconds


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
