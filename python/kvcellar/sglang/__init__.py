# SPDX-License-Identifier: Apache-2.0
"""kvcellar as a HiCache storage backend of SGLang.

`KvCellarStorage` is what SGLang's `dynamic` backend loads: module_path `kvcellar.sglang`,
class_name `KvCellarStorage`, interface_v1 1. It is imported when it is asked for, so that this
package costs nothing where it is not used. It needs neither SGLang nor torch to be imported, but
SGLang checks that it is a subclass of its HiCacheStorage, which it is where SGLang is installed.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvcellar.sglang.storage import KvCellarStorage

__all__ = ["KvCellarStorage"]


def __getattr__(name: str) -> Any:
    if name == "KvCellarStorage":
        from kvcellar.sglang.storage import KvCellarStorage

        return KvCellarStorage
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(list(globals()) + __all__)
