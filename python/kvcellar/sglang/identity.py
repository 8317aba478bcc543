# SPDX-License-Identifier: Apache-2.0
"""Which weights a page was computed with, as far as SGLang's server arguments tell.

The identity is part of the namespace: pages of other weights under the same served model name are
never found. It covers what changes the contents of a KV cache: the model's path and revision,
config.json, the weight files, the overrides of the configuration, the cache's dtype, quantization,
and the same of a draft model. It is the same on every rank and replica that serves the same model
from the same path.

No weight file is read as a whole. A folder of the Hugging Face cache is named by its commit; of
other folders names, sizes and 32 samples of 4096 bytes are hashed: a few milliseconds.
"""

import hashlib
import importlib
import os
import re
from pathlib import Path
from typing import Any

WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
INDEX_FILES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
SAMPLES = 32
SAMPLE_BYTES = 4096
INDEX_BYTES_MAX = 64 << 20
CONFIG_BYTES_MAX = 1 << 20
COMMIT = re.compile(r"[0-9a-f]{40}\Z")
# Fields of the server arguments that change what is stored, beside the model itself.
FIELDS = (
    "kv_cache_dtype",
    "quantization",
    "quantization_param_path",
    "json_model_override_args",
    "dtype",
    "load_format",
    "speculative_algorithm",
)


class UnknownIdentity(Exception):
    """Its text says why no identity could be derived."""


def server_args() -> Any | None:
    """SGLang's server arguments of this process, or None where there are none."""
    try:
        args = importlib.import_module("sglang.srt.runtime_context").get_server_args()
    except Exception:  # another version, not published yet, no SGLang
        return None
    return args


def kv_cache_dtype(args: Any | None) -> str | None:
    """The dtype that was asked for, or None for "auto" and for no server arguments."""
    dtype = getattr(args, "kv_cache_dtype", None)
    return None if dtype in (None, "auto") else str(dtype)


def derive(args: Any | None) -> str:
    """The identity of the served weights: 32 hex digits, prefixed by the scheme's name.

    Raises UnknownIdentity.
    """
    model_path = getattr(args, "model_path", None)
    if not model_path:
        raise UnknownIdentity("SGLang's server arguments are not known in this process")
    revision = getattr(args, "revision", None)
    hash_ = hashlib.blake2b(digest_size=16)
    _add(hash_, "model", str(model_path), revision)
    for name in FIELDS:
        _add(hash_, name, getattr(args, name, None))
    dummy = getattr(args, "load_format", None) == "dummy"
    try:
        _add_model(hash_, str(model_path), revision, dummy)
        draft = getattr(args, "speculative_draft_model_path", None)
        if draft:
            draft_revision = getattr(args, "speculative_draft_model_revision", None)
            _add(hash_, "draft", str(draft), draft_revision)
            if str(draft) != str(model_path):
                _add_model(hash_, str(draft), draft_revision, dummy)
    except OSError as error:
        name = error.filename or model_path
        raise UnknownIdentity(f"{name}: {error.strerror or error}") from None
    return f"sglang-1:{hash_.hexdigest()}"


def _add(hash_: Any, *fields: Any) -> None:
    """Fields with their lengths, so that no two lists of fields look alike; None is not ""."""
    for value in fields:
        if value is None:
            hash_.update((0xFFFFFFFF).to_bytes(4, "little"))
            continue
        data = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
        hash_.update(len(data).to_bytes(4, "little"))
        hash_.update(data)


def _add_model(hash_: Any, path: str, revision: str | None, dummy: bool) -> None:
    folder, commit = _locate(path, revision)
    if folder is None:
        _add(hash_, "commit", commit)
        return
    config = folder / "config.json"
    if not config.is_file():
        raise UnknownIdentity(f"{folder}: no config.json")
    if config.stat().st_size > CONFIG_BYTES_MAX:
        raise UnknownIdentity(f"{config}: larger than {CONFIG_BYTES_MAX} bytes")
    _add(hash_, "config", config.read_bytes())
    if commit is not None:
        _add(hash_, "commit", commit)
    elif dummy:
        _add(hash_, "weights", "dummy")
    else:
        _add_weights(hash_, folder)


def _locate(path: str, revision: str | None) -> tuple[Path | None, str | None]:
    """The model's folder, and its commit where the folder is named by one."""
    if os.path.isdir(path):
        folder = Path(path)
    elif os.path.isfile(path):
        raise UnknownIdentity(f"{path}: a single file")
    else:
        found = _cached_config(path, revision)
        if found is None:
            if revision and COMMIT.match(revision):
                return None, revision
            raise UnknownIdentity(f"{path}: neither a folder nor in the Hugging Face cache")
        folder = Path(found).parent
    absolute = Path(os.path.abspath(folder))
    if absolute.parent.name == "snapshots" and COMMIT.match(absolute.name):
        return folder, absolute.name
    return folder, None


def _cached_config(repo: str, revision: str | None) -> str | None:
    """config.json of a repository in the local Hugging Face cache. Asks no server."""
    try:
        hub = importlib.import_module("huggingface_hub")
        found = hub.try_to_load_from_cache(repo, "config.json", revision=revision)
    except Exception:  # not installed, or not the name of a repository
        return None
    return found if isinstance(found, str) else None


def _add_weights(hash_: Any, folder: Path) -> None:
    for name in INDEX_FILES:
        index = folder / name
        if index.is_file() and index.stat().st_size <= INDEX_BYTES_MAX:
            _add(hash_, "index", index.read_bytes())
    files = sorted(
        (entry.name, entry.stat().st_size)
        for entry in os.scandir(folder)
        if entry.name.endswith(WEIGHT_SUFFIXES) and _is_file(entry)
    )
    if not files:
        raise UnknownIdentity(f"{folder}: no weight files")
    total = sum(size for _, size in files)
    for name, size in files:
        _add(hash_, name, size)
    for offset in sorted({total * (2 * i + 1) // (2 * SAMPLES) for i in range(SAMPLES)}):
        _add(hash_, _sample(folder, files, offset))


def _is_file(entry: os.DirEntry) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a symlink to itself, for example: nothing loads that
        return False


def _sample(folder: Path, files: list[tuple[str, int]], offset: int) -> bytes:
    """SAMPLE_BYTES at an offset of all files one after another, within one file."""
    for name, size in files:
        if offset < size:
            with open(folder / name, "rb", buffering=0) as file:
                return os.pread(file.fileno(), SAMPLE_BYTES, offset)
        offset -= size
    return b""
