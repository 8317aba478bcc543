# SPDX-License-Identifier: Apache-2.0
"""What SGLang's HiCacheStorageConfig and the options mean for the library."""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import kvcellar

# The option of this adapter, which the library does not have.
SWITCH_INTERVAL = "switch_interval_us"


def whole(cfg: Any, field: str, default: int | None = None) -> int:
    """A field of storage_config as a whole number; None and absent: the default. Raises ConfigError
    that names the field."""
    value = getattr(cfg, field, None)
    if value is None and default is not None:
        return default
    try:
        if isinstance(value, float) and not value.is_integer():
            raise ValueError
        return int(value)
    except (TypeError, ValueError, OverflowError):
        raise kvcellar.ConfigError(
            errno.EINVAL, f"storage_config.{field} = {value!r}: expected a whole number"
        ) from None


def is_writer(cfg: Any) -> bool:
    if not cfg.is_mla_model:
        return True
    return whole(cfg, "tp_rank") == whole(cfg, "dcp_rank", 0)


def place_of(cfg: Any) -> dict[str, Any]:
    """What the namespace needs to know of the parallel layout. dp_rank is not in it: replicas of
    one model share what they store."""
    tp_size = whole(cfg, "tp_size")
    lcm = whole(cfg, "tp_lcm_size", 0)
    split = bool(getattr(cfg, "should_split_heads", False)) or lcm == tp_size
    return {
        "is_mla": bool(cfg.is_mla_model),
        "tp_size": tp_size,
        "tp_rank": whole(cfg, "tp_rank"),
        "tp_lcm_size": lcm if split and not cfg.is_mla_model else 0,
        "pp_size": whole(cfg, "pp_size", 1) or 1,
        "pp_rank": whole(cfg, "pp_rank", 0),
        "cp_size": whole(cfg, "attn_cp_size", 1) or 1,
        "cp_rank": whole(cfg, "attn_cp_rank", 0),
        "dcp_size": whole(cfg, "dcp_size", 1) or 1,
        "dcp_rank": whole(cfg, "dcp_rank", 0),
        "is_writer": is_writer(cfg),
    }


def tensor_pool_name(cfg: Any) -> str:
    """Single objects have no ranks in their names; tensors of ranks that differ need them."""
    place = place_of(cfg)
    name = "tensor"
    for kind in ("tp", "pp", "cp", "dcp"):
        size, rank = place[f"{kind}_size"], place[f"{kind}_rank"]
        if size > 1 and not (kind == "tp" and place["is_mla"]):
            name += f"-{kind[0]}{rank}-{size}"
    if len(name) > 32:
        name = f"tensor-{hashlib.blake2b(name.encode(), digest_size=8).hexdigest()}"
    return name


def options_of(config: dict[str, Any]) -> dict[str, Any]:
    """The effective options by name. Raises kvcellar.ConfigError."""
    return dict(json.loads(kvcellar.config_describe(config or None, json=True))["options"])


def switch_seconds(value: Any) -> float | None:
    if value is None:
        return None
    try:
        seconds = float(value) / 1e6
    except (TypeError, ValueError):
        seconds = 0.0
    if isinstance(value, bool) or not 1e-6 <= seconds <= 1.0:
        raise kvcellar.ConfigError(
            errno.EINVAL, f"{SWITCH_INTERVAL} = {value!r}: expected microseconds, 1 to 1000000"
        )
    return seconds


class Settings:
    """storage_config and the effective options. config: what the library gets.

    Raises kvcellar.ConfigError.
    """

    def __init__(self, storage_config: Any) -> None:
        given = getattr(storage_config, "extra_config", None)
        if given is not None and not isinstance(given, Mapping):
            raise kvcellar.ConfigError(
                errno.EINVAL, f"the extra config is a {type(given).__name__}: expected a dict"
            )
        model = getattr(storage_config, "model_name", None)
        if model is not None and not isinstance(model, str):
            raise kvcellar.ConfigError(
                errno.EINVAL, f"storage_config.model_name = {model!r}: expected text"
            )
        config = dict(given or {})
        self.switch_seconds = switch_seconds(config.pop(SWITCH_INTERVAL, None))
        self.config = config or None
        self.storage_config = storage_config
        self.place = place_of(storage_config)
        self.is_mla = bool(storage_config.is_mla_model)
        if self._splits_heads and self.place["tp_lcm_size"] < 1:
            raise kvcellar.ConfigError(
                errno.EINVAL, "storage_config.should_split_heads needs tp_lcm_size"
            )
        self.is_writer = bool(self.place["is_writer"])
        self.metrics = bool(getattr(storage_config, "enable_storage_metrics", False))
        self.tensor_pool = tensor_pool_name(storage_config)
        self._options = options_of(config)
        self.limits_ms = {
            name: int(self.option(f"{name}_timeout_ms", 5000)) for name in ("exists", "get", "set")
        }

    def option(self, name: str, default: Any) -> Any:
        """An option of the library as it is in effect, environment and defaults included."""
        return self._options.get(name, {}).get("value", default)

    @property
    def peer_naming(self) -> bool:
        return bool(self.option("naming", "kvcellar") == "nixl")

    @property
    def direct_io(self) -> bool:
        return bool(self.option("use_direct_io", True))

    @property
    def _splits_heads(self) -> bool:
        return not self.is_mla and bool(getattr(self.storage_config, "should_split_heads", False))

    @property
    def head_groups(self) -> int:
        """Head groups of a KV page on this rank (tp_lcm_size), 1 where pages are not split."""
        if not self._splits_heads:
            return 1
        return int(self.place["tp_lcm_size"]) // int(self.place["tp_size"])
