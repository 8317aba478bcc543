# SPDX-License-Identifier: Apache-2.0
"""Types of the extension module. Import its names from `kvcellar`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Literal, Protocol, Self, TypedDict, final

__version__: Final[str]

Key = str | bytes
ConfigText = str
Layout = Literal["explicit", "page_first", "page_first_direct", "page_head", "layer_first"]
ByteOrder = Literal["auto", "token_major", "layer_major", "head_major"]
Policy = Literal["all_pages", "trailing_pages", "block_groups"]

class _Tensor(Protocol):
    """A contiguous CPU tensor, of torch or anything like it."""

    def data_ptr(self) -> int: ...
    def numel(self) -> int: ...
    def element_size(self) -> int: ...

# Memory of the caller: a buffer object (bytearray, memoryview, numpy array; contiguous), a tensor,
# or (address, bytes).
Memory = Any | _Tensor | tuple[int, int]
# int64: an array (array.array("q"), numpy; contiguous), a tensor, or ints.
Indices = Any | _Tensor | Sequence[int]

class Error(OSError):
    """A call that failed: errno, and the library's text in strerror, which names the thing and the
    cause. Of Store.clear() with EIO it has an attribute `report` besides: what was removed."""

class ConfigError(Error, ValueError):
    """The configuration or an argument is refused (EINVAL), or the object is closed (EBADF).

    Values of a wrong Python type are a TypeError.
    """

class Part(TypedDict, total=False):
    """One part of every page of a pool: struct kvc_part. Addresses are ints (data_ptr())."""

    name: str
    base: int
    piece_bases: Sequence[int]
    piece_bytes: int
    piece_stride_bytes: int
    page_stride_bytes: int
    piece_count: int
    layer_count: int
    token_count: int
    head_count: int
    head_bytes: int
    group_stride_bytes: int

class PoolInfo(TypedDict):
    page_bytes: int
    object_bytes: int
    objects_per_page: int
    zero_copy: bool
    fingerprint: str
    reason: str

class ObjectInfo(TypedDict):
    namespace: str
    name: str
    root: str
    path: str
    stored_bytes: int
    allocated_bytes: int
    modified_ns: int
    key: bytes | None
    pool: str | None

@final
class Result:
    """What happened to each page of one transfer: a sequence of statuses. Immutable.

    `ok` is made once and then kept; taking it costs one list of bools.
    """

    @property
    def ok(self) -> list[bool]: ...
    @property
    def ok_count(self) -> int: ...
    @property
    def prefix_count(self) -> int: ...
    @property
    def statuses(self) -> list[str]: ...
    @property
    def causes(self) -> list[str]: ...
    @property
    def errors(self) -> list[int]: ...
    @property
    def present(self) -> bytes:
        """One byte per page, 1 = OK: what policy_prefix() and policy_restorable() take."""
    def __len__(self) -> int: ...
    def __getitem__(self, page: int, /) -> str: ...
    def __bool__(self) -> bool:
        """True when every page is OK."""

@final
class Transfer:
    """One operation on pages of one pool, for Store.run() and Store.start(), any number of times.

    Keys and indices are copied; buffers are held as long as the Transfer. len(): its pages.
    """

    def __init__(
        self,
        op: Literal["exists", "get", "set", "remove"],
        pool: Pool,
        keys: Iterable[Key],
        indices: Indices | None = None,
        *,
        index_stride: int = 1,
        buffers: Iterable[Memory] | None = None,
        parent: Key | None = None,
        depth: int = 0,
        timeout_ms: int = 0,
        stop_at_miss: bool = False,
        overwrite: bool = False,
    ) -> None:
        """page i lies at indices[i * index_stride]. buffers instead, where parts have no base:
        part j of page i is buffers[i * part_count + j]."""
    def __len__(self) -> int: ...

@final
class Batch:
    """Transfers that the store's I/O threads run (kvc_batch_start). It holds them and their memory.

    Closing the store, or dropping the batch, cancels it.
    """

    def wait(self, timeout: float | None = None) -> list[Result] | None:
        """The results, one per transfer; None when `timeout` seconds went by."""
    def done(self) -> bool: ...
    def cancel(self) -> None:
        """What has not been started ends SKIPPED; it is done when wait() or done() say so."""
    def fileno(self) -> int:
        """Readable once it is done; the batch's own."""

@final
class Store:
    def __init__(
        self,
        config: Mapping[str, Any] | ConfigText | None = None,
        *,
        read_only: bool = False,
        selftest: bool = True,
    ) -> None:
        """config: a dict; or text, TOML, JSON, YAML or "@path"; None: defaults and environment."""
    def namespace(
        self,
        model_id: str | None = None,
        *,
        identity: str | None = None,
        tenant: str | None = None,
        dtype: str | None = None,
        page_tokens: int = 64,
        is_mla: bool = False,
        tp_size: int = 1,
        tp_lcm_size: int = 0,
        pp_size: int = 1,
        cp_size: int = 1,
        dcp_size: int = 1,
        logical_page_tokens: int = 0,
        tp_rank: int = 0,
        pp_rank: int = 0,
        cp_rank: int = 0,
        dcp_rank: int = 0,
        is_writer: bool | None = None,
    ) -> Namespace: ...
    def run(self, transfers: Iterable[Transfer]) -> list[Result]: ...
    def start(self, transfers: Iterable[Transfer]) -> Batch: ...
    def register_memory(
        self, addr: int, nbytes: int, *, kind: Literal["host", "cuda"] = "host", device: int = 0
    ) -> Region: ...
    def stats(self) -> dict[str, Any]:
        """kvc_store_stats: counters by name; operations -> calls, pages, bytes, statuses, ..."""
    def stats_text(self, format: Literal["text", "json", "prometheus"] = "text") -> str: ...
    def describe(self, format: Literal["text", "json"] = "text") -> str: ...
    def metrics(self) -> str: ...
    def usage(self, *, recount: bool = False) -> list[dict[str, Any]]: ...
    def usage_namespaces(self) -> list[dict[str, Any]]:
        """Per root and namespace: root, namespace, model, tenant, live_bytes, allocated_bytes,
        objects, share_bytes (0: no limit), pinned."""
    def pin(self, namespace: str, *, on: bool = True) -> None: ...
    def clean(
        self,
        *,
        to_percent: float | None = None,
        to_bytes: int | None = None,
        dry_run: bool = False,
    ) -> dict[str, int]:
        """groups, objects, bytes, failed, left_bytes, missing_bytes (would have to go besides, and
        cannot), pinned_bytes (of what is left). One of to_percent and to_bytes."""
    def list(self, namespace: str | None = None) -> list[ObjectInfo]: ...
    def verify(
        self,
        namespace: str | None = None,
        *,
        remove: bool = False,
        callback: Callable[[ObjectInfo, str, str, int, int], Any] | None = None,
    ) -> dict[str, int]:
        """Numbers of objects: "objects", and one per status. callback(object, status, cause, done,
        total) gets each one; what it raises ends the walk and is passed on."""
    def clear(self, namespace: str, *, dry_run: bool = False) -> dict[str, int]: ...
    def object_stat(self, root: str, path: str) -> dict[str, Any]: ...
    def selftest(self) -> None: ...
    def close(self) -> None:
        """Closes the store with what is open in it; a second close does nothing. Of a namespace,
        pool and region likewise.

        New calls are refused from here on; those in flight are waited for, at most 2 s:
        Error(EBUSY) after that, and it stays open. In a child that was forked the handle is only
        forgotten.
        """
    @property
    def closed(self) -> bool: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None: ...

@final
class Namespace:
    @property
    def id(self) -> str: ...
    def pool(
        self,
        name: str = "kv",
        parts: Sequence[Part] = (),
        *,
        layout: Layout = "explicit",
        byte_order: ByteOrder = "auto",
        dtype: str | None = None,
        page_count: int = 0,
        page_tokens: int = 0,
        per_rank: bool | None = None,
        token_indices: bool = False,
        copy_mode: bool = False,
        marker: bool = False,
        owner: object = None,
    ) -> Pool:
        """owner: kept alive as long as the pool (the tensors whose memory it names)."""
    def usage(self) -> tuple[int, int]: ...
    def clear(self, *, dry_run: bool = False) -> dict[str, int]: ...
    def put(self, pool_name: str, key: Key, data: Memory, *, overwrite: bool = False,
            timeout_ms: int = 0) -> bool:
        """Stores one object of any size. False: one of that size was there and was kept."""
    def get(self, pool_name: str, key: Key, *, timeout_ms: int = 0) -> bytes | None:
        """None for a miss. Error(EBADMSG) when it was damaged; it is gone then."""
    def get_into(self, pool_name: str, key: Key, buffer: Memory, *,
                 timeout_ms: int = 0) -> int | None:
        """Reads into writable memory; the payload's size, or None for a miss. Error(ENOBUFS) when
        it is larger than the buffer."""
    def exists(self, pool_name: str, key: Key, *, timeout_ms: int = 0) -> int | None:
        """The payload's size, or None."""
    def remove(self, pool_name: str, key: Key, *, timeout_ms: int = 0) -> bool: ...
    def put_many(self, pool_name: str, keys: Iterable[Key], buffers: Iterable[Memory], *,
                 overwrite: bool = False, timeout_ms: int = 0) -> list[int]:
        """One call, one release of the GIL. 0 or a positive errno per key. timeout_ms, 0: the
        configuration's, is the whole call's: what it does not reach has ETIMEDOUT."""
    def get_many(self, pool_name: str, keys: Iterable[Key], buffers: Iterable[Memory], *,
                 timeout_ms: int = 0) -> list[int]:
        """0 when exactly the buffer's size was stored and is in it; else a positive errno: ENOENT
        for a miss, ENOBUFS and EMSGSIZE when more and when fewer bytes were stored, EBADMSG when it
        was damaged."""
    def exists_many(self, pool_name: str, keys: Iterable[Key], *,
                    timeout_ms: int = 0) -> list[bool]: ...
    def where(self, pool_name: str, key: Key) -> list[ObjectInfo]: ...
    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None: ...

@final
class Pool:
    @property
    def name(self) -> str: ...
    @property
    def part_count(self) -> int: ...
    def info(self) -> PoolInfo: ...
    def exists(self, keys: Iterable[Key], *, stop_at_miss: bool = False,
               timeout_ms: int = 0) -> Result: ...
    def get(self, keys: Iterable[Key], indices: Indices | None = None, *, index_stride: int = 1,
            buffers: Iterable[Memory] | None = None, timeout_ms: int = 0) -> Result: ...
    def set(self, keys: Iterable[Key], indices: Indices | None = None, *, index_stride: int = 1,
            buffers: Iterable[Memory] | None = None, parent: Key | None = None, depth: int = 0,
            overwrite: bool = False, timeout_ms: int = 0) -> Result: ...
    def remove(self, keys: Iterable[Key], *, timeout_ms: int = 0) -> Result: ...
    def where(self, key: Key) -> list[ObjectInfo]: ...
    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None: ...

@final
class Region:
    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None: ...

def policy_prefix(pools: Sequence[tuple[bytes, Policy, int]], page_count: int) -> int:
    """(present, policy, pages) per pool: kvc_policy_prefix."""

def policy_restorable(pools: Sequence[tuple[bytes, Policy, int]], page_count: int) -> list[int]:
    """The prefix lengths, 1..page_count ascending, that every pool can restore."""

def config_options(format: Literal["text", "json", "markdown"] = "text") -> str: ...
def config_sample() -> str: ...
def config_describe(config: Mapping[str, Any] | ConfigText | None = None, *,
                    json: bool = False) -> str: ...
def config_check(config: Mapping[str, Any] | ConfigText | None = None) -> None: ...
def plugins(config: Mapping[str, Any] | ConfigText | None = None) -> list[dict[str, Any]]: ...
def set_log(callback: Callable[[int, str], Any] | None, level: int = 2) -> None:
    """callback(level, text): may come from any thread, must not call kvcellar (Error(EDEADLK)).
    What it raises goes to sys.unraisablehook. Removed at exit."""
