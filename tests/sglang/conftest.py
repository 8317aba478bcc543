# SPDX-License-Identifier: Apache-2.0
"""Tests of kvcellar below the real, unmodified SGLang, on a CPU.

Level 1 (test_level1.py): SGLang's host pools and one storage instance. Level 2: the cache
controller with its threads. Level 3: the radix tree, from insert to load back. Level 4
(test_engine*.py): an Engine with a model. Run by the Python of an environment that has SGLang (see
CONTRIBUTING.md), with the folder of the package `kvcellar` in PYTHONPATH.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent

# Before anything imports sglang: it looks for a GPU otherwise, and for files of the model hub.
os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
for folder in (HERE, HERE / "shim"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
warnings.filterwarnings("ignore", category=DeprecationWarning)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--subject",
        choices=("kvcellar", "nixl", "file"),
        default="kvcellar",
        help="storage class that levels 1 to 3 run over (the others are SGLang's own)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "layouts(*names): storage layouts that the test runs on; packed where none says")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One run for each storage layout of the test, where the storage class is kvcellar."""
    if not {"subject", "kvcellar"} & set(metafunc.fixturenames):
        return
    marker = metafunc.definition.get_closest_marker("layouts")
    layouts = marker.args if marker else ("packed",)
    if metafunc.config.getoption("--subject") != "kvcellar":
        layouts = layouts[:1]
    metafunc.parametrize("storage_layout", layouts, scope="session", indirect=True)


@pytest.fixture(scope="session")
def storage_layout(request: pytest.FixtureRequest) -> str:
    """Of kvcellar's roots in this test."""
    return request.param


@pytest.fixture(scope="session")
def subject(request: pytest.FixtureRequest, storage_layout: str) -> Any:
    """The storage class under test."""
    from subjects import KVCELLAR, SUBJECTS

    name = request.config.getoption("--subject")
    return KVCELLAR[storage_layout] if name == "kvcellar" else SUBJECTS[name]


@pytest.fixture(scope="session")
def kvcellar(request: pytest.FixtureRequest, storage_layout: str) -> Any:
    """kvcellar, for tests that are about nothing else."""
    from subjects import KVCELLAR

    if request.config.getoption("--subject") != "kvcellar":
        pytest.skip("about kvcellar alone")
    return KVCELLAR[storage_layout]


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder of the test's own, removed afterwards. On a disk, where O_DIRECT means something."""
    folder = Path(tempfile.mkdtemp(prefix="kvcellar-sglang-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def roots(scratch: Path) -> list[Path]:
    """One storage directory."""
    return make_roots(scratch, 1)


def make_roots(scratch: Path, count: int) -> list[Path]:
    """`count` empty storage directories."""
    folders = [scratch / f"root{number}" for number in range(count)]
    for folder in folders:
        folder.mkdir(mode=0o700, parents=True)
    return folders


@pytest.fixture
def one_rank() -> Iterator[None]:
    """SGLang's process-wide state: server arguments of a dummy model, a single rank, and memory.

    SGLang leaves 10 GB of a machine's free memory alone; the pools here are small, so that they get
    a budget that does not depend on the machine.
    """
    from sglang.srt.mem_cache.pool_host.base import host_memory_budget_scope
    from sglang.srt.runtime_context import get_parallel
    from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

    set_global_server_args_for_scheduler(ServerArgs(model_path="dummy", page_size=16, device="cpu"))
    with (
        get_parallel().override(tp_rank=0, tp_size=1, pp_rank=0, pp_size=1),
        host_memory_budget_scope(2 << 30),
    ):
        yield
