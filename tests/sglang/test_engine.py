# SPDX-License-Identifier: Apache-2.0
"""Level 4, short: what one Engine stored comes back in the next one, in another process."""

from __future__ import annotations

from pathlib import Path

import engine_run
import pytest
from mk_model import kv_bytes_per_token, make_model
from processes import run_engine
from subjects import stored_objects


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def test_second_process_reads_what_the_first_stored(model: Path, scratch: Path) -> None:
    """Engine(hicache_storage_backend="kvcellar") and a TOML file, as an operator starts it."""
    store, config = scratch / "store", scratch / "kvcellar.toml"
    store.mkdir(mode=0o700)
    config.write_text(
        f'storage_dirs = "{store}"\ncapacity = "256MiB"\nprefetch_threshold = 64\n'
        '\n[plugin.posix]\nactive = true\n', encoding="utf-8")
    arguments = {"hicache_storage_backend": "kvcellar",
                 "hicache_storage_backend_extra_config": f"@{config}"}

    first, log = run_engine(scratch, model, arguments, until_stored=120)
    assert first["prompt"] == 700 and first["cached"] == 0
    assert first["again"]["out"] == first["out"]
    assert "Creating dynamic storage backend 'kvcellar' (kvcellar.sglang.KvCellarStorage)" in log
    objects = stored_objects(store)
    assert all("/slots-" in entry["path"] for entry in objects)  # what new roots are
    stored = sum(entry["stored_bytes"] for entry in objects)
    assert stored >= engine_run.STORED * kv_bytes_per_token()

    second, log = run_engine(scratch, model, arguments)
    assert second["cached"] == engine_run.STORED == 640
    assert second["details"] == {"device": 0, "host": 0, "storage": 640,
                                 "storage_backend": "KvCellarStorage"}
    assert second["out"] == first["out"]
    assert "Traceback" not in log
