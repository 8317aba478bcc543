# SPDX-License-Identifier: Apache-2.0
"""The storage classes that the tests put under SGLang, and how each is configured.

kvcellar is what is tested. The other two are SGLang's own, unmodified: HiCacheNixl is the other
side of the tests that share a directory, HiCacheFile the oracle of the hit policies. With
`--subject` levels 1 to 3 run over one of them, which shows what the harness takes for granted.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NIXL_DIRECTORIES = "SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR"
FILE_DIRECTORY = "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"


class Subject:
    """One storage class. `backend`: the value of --hicache-storage-backend."""

    name: str
    backend: str

    def options(self, roots: list[Path], **options: Any) -> dict[str, Any]:
        """The extra config that SGLang is given, for these storage directories."""
        raise NotImplementedError

    def environment(self, roots: list[Path]) -> dict[str, str]:
        """Variables that have to be set while the class is constructed."""
        return {}

    def load(self) -> type:
        """The class."""
        raise NotImplementedError

    def construct(self, config: Any) -> Any:
        """An instance, made the way SGLang's factory makes it."""
        raise NotImplementedError

    def extra_json(self, roots: list[Path], **options: Any) -> str:
        """The extra config as the text of --hicache-storage-backend-extra-config."""
        return json.dumps(self.options(roots, **options))

    @contextlib.contextmanager
    def environ(self, roots: list[Path]) -> Iterator[None]:
        """Sets environment() for as long as the block lasts."""
        changed = self.environment(roots)
        before = {name: os.environ.get(name) for name in changed}
        os.environ.update(changed)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

    @contextlib.contextmanager
    def open(
        self, config: Any, host_cache: Any, roots: list[Path], **options: Any
    ) -> Iterator[Any]:
        """A storage instance with all pools of `host_cache` registered, closed at the end.

        config: a HiCacheStorageConfig, whose extra_config is replaced. options: keys of
        extra_config.
        """
        config.extra_config = self.options(roots, **options)
        with self.environ(roots):
            storage = self.construct(config)
        try:
            host_cache.register(storage)
            yield storage
        finally:
            close = getattr(storage, "close", None)
            if close:
                close()


class Kvcellar(Subject):
    """kvcellar with one storage layout; HiCacheNixl's names have files only.

    Its capacity is small: packed takes space from the disk ahead of need.
    """

    name = "kvcellar"
    backend = "dynamic"
    CAPACITY = "256MiB"

    def __init__(self, layout: str) -> None:
        self.layout = layout

    @property
    def page_names(self) -> str:
        """What the fault plugin sees in transfers of pages, as a glob of its rules."""
        return "*.kv.*" if self.layout == "files" else "*/seg.*"

    def options(self, roots: list[Path], **options: Any) -> dict[str, Any]:
        layout = "files" if options.get("naming") == "nixl" else self.layout
        return {
            "backend_name": "kvcellar",
            "module_path": "kvcellar.sglang",
            "class_name": "KvCellarStorage",
            "interface_v1": 1,
            "storage_dirs": [str(root) for root in roots],
            "storage_layout": layout,
            "capacity": self.CAPACITY,
            "l3_cleaner_enabled": False,
            "identity": "tests",
            **options,
        }

    def load(self) -> type:
        from kvcellar.sglang import KvCellarStorage

        return KvCellarStorage

    def construct(self, config: Any) -> Any:
        return self.load()(config, {})


class Nixl(Subject):
    """HiCacheNixl. Its cleaner is off: it goes by the whole disk, and would empty the cache."""

    name = "nixl"
    backend = "nixl"

    def options(self, roots: list[Path], **options: Any) -> dict[str, Any]:
        return {"plugin": {"posix": {"active": True}}, "l3_cleaner_enabled": False, **options}

    def environment(self, roots: list[Path]) -> dict[str, str]:
        return {NIXL_DIRECTORIES: ",".join(str(root) for root in roots)}

    def load(self) -> type:
        from sglang.srt.mem_cache.storage.nixl.hicache_nixl import HiCacheNixl

        return HiCacheNixl

    def construct(self, config: Any) -> Any:
        return self.load()(config)


class File(Subject):
    """HiCacheFile: one directory, no interface v1."""

    name = "file"
    backend = "file"

    def options(self, roots: list[Path], **options: Any) -> dict[str, Any]:
        options.pop("use_direct_io", None)
        return options

    def environment(self, roots: list[Path]) -> dict[str, str]:
        return {FILE_DIRECTORY: str(roots[0])}

    def load(self) -> type:
        from sglang.srt.mem_cache.hicache_storage import HiCacheFile

        return HiCacheFile

    def construct(self, config: Any) -> Any:
        return self.load()(config)


KVCELLAR = {layout: Kvcellar(layout) for layout in ("packed", "files")}
SUBJECTS = {
    subject.name: subject for subject in (KVCELLAR["packed"], Nixl(), File())
}


def stored_objects(root: Path) -> list[dict[str, Any]]:
    """What a root holds, in whichever layout: as Store.list() tells it."""
    import kvcellar

    with kvcellar.Store({"storage_dirs": [str(root)]}, read_only=True) as store:
        return [dict(entry) for entry in store.list()]


def stored_files(root: Path) -> list[Path]:
    """The objects below a root: all files but the housekeeping and what describes a namespace."""
    return sorted(
        path
        for path in root.rglob("*")
        if path.is_file()
        and ".kvcellar" not in path.relative_to(root).parts
        and path.name != "namespace.json"
    )


def damage_object(root: Path, key: str) -> None:
    """Turns one bit in the first byte of the one stored object of a page."""
    [entry] = [entry for entry in stored_objects(root) if key in entry["name"]]
    path, _, slot = entry["path"].partition("@")
    slot_bytes = int(Path(path).parent.name.removeprefix("slots-")) if slot else 0
    with open(root / path, "r+b") as file:
        file.seek(int(slot or 0) * slot_bytes)
        first = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([first ^ 1]))


def remove_object(root: Path, key: str) -> None:
    """Another store ends the one stored object of a page."""
    import kvcellar

    damage_object(root, key)
    with kvcellar.Store({"storage_dirs": [str(root)]}) as store:
        assert store.verify(remove=True)["corrupt"] == 1
