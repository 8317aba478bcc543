# SPDX-License-Identifier: Apache-2.0
"""The wheel in build/wheel (scripts/wheel makes it), installed as users install it.

It is installed under a umask of 002, with which every file may be written by the group: the library has
to take its own plugins all the same.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from typing import Any

import pytest

TREE = pathlib.Path(__file__).resolve().parents[2]
FOLDER = TREE / os.environ.get("KVC_BUILD_ROOT", "build") / "wheel"
VERSION = (TREE / "VERSION").read_text(encoding="utf-8").strip()
# Those that the stable ABI promises to serve and that are here.
OTHER_PYTHONS = [
    found for minor in range(11, 16)
    if minor != sys.version_info.minor and (found := shutil.which(f"python3.{minor}"))
    and subprocess.run([found, "-c", "import venv, ensurepip"], capture_output=True).returncode == 0
]

ROUND_TRIP = """
import json, pathlib, sys
import kvcellar
config = {"storage_dirs": [sys.argv[1]], "plugin": {"posix": {"active": True}}}
data = bytes(range(256)) * 300
with kvcellar.Store(config) as store:
    space = store.namespace("model", identity="weights")
    assert space.put("object", "key", data) is True
    assert space.put("object", "key", data) is False
    assert space.get("object", "other") is None
with kvcellar.Store(config) as store:
    assert store.namespace("model", identity="weights").get("object", "key") == data
maps = pathlib.Path("/proc/self/maps").read_text()
print(json.dumps(sorted({line.split(None, 5)[5] for line in maps.splitlines() if ".so" in line})))
"""

ENTRY_POINTS = """
import importlib.metadata as metadata, json
print(json.dumps({group: [(e.name, e.value) for e in metadata.entry_points(group=group)
                          if e.dist.name == "kvcellar"]
                  for group in ("sglang.srt.plugins", "console_scripts")}))
"""


def only(pattern: str) -> pathlib.Path:
    """The one file of that name in the folder of wheels."""
    found = list(FOLDER.glob(pattern))
    assert len(found) == 1, f"{FOLDER}/{pattern}: {len(found)} files; scripts/wheel makes one"
    return found[0]


def clean_environment() -> dict[str, str]:
    """Nothing of a build tree: neither its package nor its plugins. A disk that others have filled
    is no defect."""
    env = {name: value for name, value in os.environ.items()
           if not name.startswith(("PYTHON", "KVC", "LD_"))}
    return env | {"KVCELLAR_L3_CLEANER_HIGH_WATERMARK": "99.9"}


def run(*command: Any, **options: Any) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([str(word) for word in command], text=True, capture_output=True,
                          env=clean_environment(), check=False, timeout=240, **options)
    return done


def output(*command: Any, **options: Any) -> str:
    done = run(*command, **options)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


class Installation:
    """An environment of its own with the wheel in it."""

    def __init__(self, python: str, folder: pathlib.Path) -> None:
        self.bin = folder / "bin"
        output(python, "-m", "venv", folder)
        output(self.bin / "python", "-m", "pip", "install", "--quiet", "--no-index", "--no-deps",
               only("*.whl"), umask=0o002)
        where = "import sysconfig; print(sysconfig.get_path('platlib'))"
        self.packages = pathlib.Path(output(self.bin / "python", "-c", where).strip())
        self.plugins = self.packages / "kvcellar" / "lib" / "kvcellar" / "plugins"

    def python(self, *arguments: Any) -> str:
        # -P: not the folder that the tests are run from.
        return output(self.bin / "python", "-P", *arguments)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return Installation(sys.executable, tmp_path_factory.mktemp("wheel") / "env")


@pytest.fixture
def writable_plugin(installed: Installation) -> Iterator[pathlib.Path]:
    plugin = installed.plugins / "kvcellar-plugin-posix.so"
    library = installed.packages / "kvcellar" / "lib" / "libkvcellar.so.0"
    before = library.stat().st_mode
    library.chmod(0o644)
    yield plugin
    library.chmod(before)


def test_names_say_what_is_needed() -> None:
    wheel = only("*.whl")
    assert re.fullmatch(rf"kvcellar-{re.escape(VERSION)}-cp311-abi3-manylinux_2_\d+_\w+\.whl",
                        wheel.name)
    assert only("*.tar.gz").name == f"kvcellar-{VERSION}.tar.gz"


def test_the_wheel_holds_the_package_and_nothing_else() -> None:
    with zipfile.ZipFile(only("*.whl")) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        metadata = archive.read(f"kvcellar-{VERSION}.dist-info/METADATA").decode()
    for wanted in ("_kvcellar.abi3.so", "_kvcellar.pyi", "py.typed", "__init__.py", "bin/kvcellar",
                   "lib/libkvcellar.so.0", "lib/kvcellar/plugins/kvcellar-plugin-posix.so",
                   "sglang/plugin.py"):
        assert f"kvcellar/{wanted}" in names
    assert {name.split("/")[0] for name in names} == {
        "kvcellar", "kvcellar.libs", f"kvcellar-{VERSION}.dist-info"}
    assert not [name for name in names if re.search(r"\.(c|h|o|a|pyc|md5|log)$", name)]
    for library in ("liburing", "libaio", "libb2", "libjansson", "libyaml", "libxxhash", "libisal"):
        assert any(name.startswith(f"kvcellar.libs/{library}") for name in names), library
        assert any("/licenses/" + library in name for name in names), library
    assert not [name for name in names if "cairo" in name]
    assert "Requires-Python: >=3.11" in metadata
    assert "Requires-Dist" not in metadata


def test_the_source_distribution_holds_no_junk() -> None:
    with tarfile.open(only("*.tar.gz")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"CMakeLists.txt", "VERSION", "LICENSE", "python/CMakeLists.txt",
            "src/core/backend.c", "include/kvcellar/kvcellar.h", "PKG-INFO"} <= names
    top = {name.split("/")[0] for name in names}
    assert not top & {"build", "tests", "traces", ".git", ".ci", "install"}
    assert not [name for name in names if re.search(r"\.(o|so|pyc|whl|log)$", name)]


def test_set_and_get(installed: Installation, tmp_path: pathlib.Path) -> None:
    libraries = json.loads(installed.python("-c", ROUND_TRIP, tmp_path / "cache"))
    assert list((tmp_path / "cache").rglob("key.object.*"))
    for name in ("libkvcellar", "libjansson", "liburing", "libisal", "kvcellar-plugin-posix"):
        loaded = [path for path in libraries if pathlib.Path(path).name.startswith(name)]
        assert loaded, name
        assert all(path.startswith(str(installed.packages)) for path in loaded), loaded


def test_one_wheel_serves_other_pythons(tmp_path: pathlib.Path) -> None:
    for python in OTHER_PYTHONS:
        other = Installation(python, tmp_path / pathlib.Path(python).name)
        other.python("-c", ROUND_TRIP, other.bin.parent / "cache")


def test_the_command(installed: Installation, tmp_path: pathlib.Path) -> None:
    command = installed.bin / "kvcellar"
    assert output(command, "--version").split() == ["kvcellar", VERSION]
    store = ("-D", tmp_path / "cache")
    (tmp_path / "in").write_bytes(b"hello")
    output(command, *store, "put", "-q", "greeting", tmp_path / "in")
    assert output(command, *store, "get", "greeting") == "hello"
    missing = run(command, *store, "get", "nothing")
    assert missing.returncode == 3 and "miss" in missing.stderr
    assert installed.python("-m", "kvcellar", "--version").split() == ["kvcellar", VERSION]


def test_entry_points(installed: Installation) -> None:
    found = json.loads(installed.python("-c", ENTRY_POINTS))
    assert found == {
        "sglang.srt.plugins": [["kvcellar", "kvcellar.sglang.plugin:load"]],
        "console_scripts": [["kvcellar", "kvcellar._cli:main"]],
    }
    # SGLang imports it in every process that it starts: without SGLang or torch here it must do.
    installed.python("-c", "import kvcellar.sglang.plugin as p; assert callable(p.load)")


def test_files_that_the_group_may_write(installed: Installation, tmp_path: pathlib.Path,
                                        writable_plugin: pathlib.Path) -> None:
    """More open than the library itself: refused by name."""
    assert writable_plugin.stat().st_mode & 0o020
    refused = run(installed.bin / "kvcellar", "-D", tmp_path / "cache", "ls")
    assert refused.returncode != 0
    assert f"{writable_plugin} may be changed by others" in refused.stderr
