# SPDX-License-Identifier: Apache-2.0
"""An L3 KV-cache store for LLM inference: pages of KV cache, by content key, on storage.

    import array, ctypes, kvcellar

    memory = bytearray(16 * 4096)  # sixteen pages; "k" and "v" halves, or whatever a page has
    address = (ctypes.c_char * len(memory)).from_buffer(memory)  # or tensor.data_ptr()

    with kvcellar.Store({"storage_dirs": ["/data/kv"]}) as store:
        namespace = store.namespace("org/model", dtype="bfloat16", page_tokens=64)
        pool = namespace.pool("kv", [{"base": ctypes.addressof(address), "piece_bytes": 4096,
                                      "piece_count": 1, "page_stride_bytes": 4096}],
                              page_count=16, owner=memory)
        pool.set(["key-0", "key-1"], array.array("q", [0, 1]))
        result = pool.get(["key-0", "key-1"], array.array("q", [2, 3]))
        result.ok, result.statuses  # [True, True], ["ok", "ok"]

Rules that hold for everything here
  - Store, Namespace, Pool and Batch may be used by any number of threads. The GIL is released once
    per call, around the one call of the library; calls that cannot do I/O keep it.
  - What happened to a page is a status in a Result; an exception means that nothing was tried.
    Error is an OSError with errno and the library's text; ConfigError is a ValueError besides.
  - A child keeps its parent alive. close() closes what is open below, waits at most 2 s for calls
    in flight, and may be called twice. What is dropped is closed. A closed object raises
    ConfigError with errno EBADF.
  - A process that was forked opens a store of its own: calls raise Error with errno EPERM.
  - Addresses are taken at their word: memory that a Part or an (address, bytes) pair names has to
    be there. Pool(owner=...) keeps it.
"""

from kvcellar._kvcellar import (
    Batch,
    ConfigError,
    Error,
    Namespace,
    Pool,
    Region,
    Result,
    Store,
    Transfer,
    __version__,
    config_check,
    config_describe,
    config_options,
    config_sample,
    plugins,
    policy_prefix,
    policy_restorable,
    set_log,
)

__all__ = [
    "Batch",
    "ConfigError",
    "Error",
    "Namespace",
    "Pool",
    "Region",
    "Result",
    "Store",
    "Transfer",
    "__version__",
    "config_check",
    "config_describe",
    "config_options",
    "config_sample",
    "plugins",
    "policy_prefix",
    "policy_restorable",
    "set_log",
]
