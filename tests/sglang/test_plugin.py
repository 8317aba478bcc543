# SPDX-License-Identifier: Apache-2.0
"""The entry point by which SGLang takes the name kvcellar: what it hooks and what it does not."""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import processes
import pytest

from kvcellar.sglang import plugin

DYNAMIC = {
    "backend_name": "kvcellar",
    "module_path": "kvcellar.sglang",
    "class_name": "KvCellarStorage",
    "interface_v1": 1,
}


def run_python(code: str, folder: Path, **variables: str) -> str:
    """The output of `code` in a new interpreter with the environment of an SGLang process."""
    done = subprocess.run(
        [sys.executable, "-c", code], env=processes.environment(folder, variables), cwd=folder,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


class Controller:
    """As much of HiCacheController as the hook touches; records how it is attached."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.storage_backend_type: str | None = None

    def attach_storage_backend(
        self, storage_backend, prefetch_threshold=256, model_name=None,
        storage_backend_extra_config=None,
    ):
        self.calls.append(
            (storage_backend, prefetch_threshold, model_name, storage_backend_extra_config))
        if storage_backend == "broken":
            raise ValueError("broken")
        self.storage_backend_type = storage_backend
        return "attached"


def attach(controller: Controller, *args: Any, **kwargs: Any) -> Any:
    return plugin._attach(Controller.attach_storage_backend, controller, *args, **kwargs)


@pytest.fixture(autouse=True)
def no_redirect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(plugin.REDIRECT_VARIABLE, raising=False)


def test_import_is_cheap(tmp_path):
    loaded = run_python(
        "import sys, kvcellar.sglang.plugin\n"
        "print([name for name in ('torch', 'numpy', 'sglang') if name in sys.modules])", tmp_path)
    assert loaded.strip() == "[]"


def test_launcher_changes_only_the_choices_of_one_option(tmp_path):
    """Everything else of the command line is what SGLang made it, and no controller is loaded."""
    shown = json.loads(run_python("""
import argparse, json, sys
from sglang.srt.plugins import load_plugins
from sglang.srt.plugins.hook_registry import HookRegistry
from sglang.srt.server_args import ServerArgs

def options():
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return {' '.join(a.option_strings): [a.dest, repr(a.default), a.help, repr(a.type),
            sorted(map(str, a.choices)) if a.choices else None] for a in parser._actions}

before = options()
load_plugins()
after = options()
name = '--hicache-storage-backend'
print(json.dumps({
    'order kept': list(before) == list(after),
    'changed': [option for option in before if before[option] != after[option]],
    'added': sorted(set(after[name][4]) - set(before[name][4])),
    'rest kept': before[name][:4] == after[name][:4],
    'hooks': sorted(HookRegistry._patched),
    'controller': 'sglang.srt.managers.cache_controller' in sys.modules,
}))
""", tmp_path).splitlines()[-1])
    assert shown == {
        "order kept": True, "changed": [plugin.OPTION], "added": ["kvcellar"], "rest kept": True,
        "hooks": [plugin.ARGUMENTS_TARGET], "controller": False,
    }


def test_a_scheduler_process_has_two_hooks_and_no_more(tmp_path):
    shown = run_python("""
import sglang.srt.managers.scheduler
from sglang.srt.plugins import load_plugins
from sglang.srt.plugins.hook_registry import HookRegistry
load_plugins()
print(sorted(HookRegistry._patched))
""", tmp_path).splitlines()[-1]
    assert shown == str(sorted([plugin.ARGUMENTS_TARGET, plugin.ATTACH_TARGET]))


@pytest.mark.parametrize("name, redirect", [
    *((name, None) for name in ("file", "mooncake", "dynamic", "shm", "nixl")),
    ("nixl", "0"), ("nixl", ""), ("file", "1"), ("dynamic", "1"),
])
def test_other_backends_pass_through(name, redirect, monkeypatch):
    """Not a copy of the configuration, but the object itself; and nothing is set afterwards."""
    if redirect is not None:
        monkeypatch.setenv(plugin.REDIRECT_VARIABLE, redirect)
    controller, config = Controller(), {"plugin": {"posix": {}}}
    assert attach(controller, name, 64, "model", config) == "attached"
    assert controller.calls == [(name, 64, "model", config)]
    assert controller.calls[0][3] is config
    assert config == {"plugin": {"posix": {}}}
    assert controller.storage_backend_type == name


def test_name_becomes_the_dynamic_backend():
    controller = Controller()
    assert attach(controller, storage_backend="kvcellar", model_name="m") == "attached"
    assert controller.calls == [("dynamic", 256, "m", DYNAMIC)]
    # What a second attach, the status and the label of the metrics go by.
    assert controller.storage_backend_type == "kvcellar"


def test_configuration_is_copied_in_its_order():
    text = """
use_direct_io = false
[plugin.gds]
active = false
[plugin.posix]
active = true
[plugin.3fs]
active = true
"""
    config, before = tomllib.loads(text), tomllib.loads(text)
    controller = Controller()
    attach(controller, "kvcellar", storage_backend_extra_config=config)
    given = controller.calls[0][3]
    assert config == before
    assert list(given) == ["use_direct_io", "plugin", "interface_v1", "backend_name", "module_path",
                           "class_name"]
    assert list(given["plugin"]) == ["gds", "posix", "3fs"]


def test_class_is_ours_whatever_the_configuration_says():
    config = plugin.dynamic_config({"class_name": "Other", "module_path": "os", "interface_v1": 0})
    assert config == DYNAMIC | {"interface_v1": 0}


def test_failed_attach_is_sglangs_to_handle():
    controller = Controller()
    with pytest.raises(ValueError, match="broken"):
        attach(controller, "broken")
    failing = SimpleNamespace(storage_backend_type=None)

    def original(self, storage_backend, storage_backend_extra_config=None):
        raise ValueError(storage_backend)

    with pytest.raises(ValueError, match="dynamic"):
        plugin._attach(original, failing, "kvcellar")
    assert failing.storage_backend_type is None


def test_wrong_call_fails_as_in_sglang():
    with pytest.raises(TypeError, match="unexpected keyword"):
        attach(Controller(), "kvcellar", no_such_parameter=1)


@pytest.mark.parametrize("value", ["1", "true", "Yes", " on "])
def test_nixl_is_redirected(value, monkeypatch, caplog):
    monkeypatch.setenv(plugin.REDIRECT_VARIABLE, value)
    controller = Controller()
    with caplog.at_level(logging.INFO):
        attach(controller, "nixl", storage_backend_extra_config={"use_uring": "true"})
    assert controller.calls == [("dynamic", 256, None, {"use_uring": "true"} | DYNAMIC)]
    assert controller.storage_backend_type == "nixl"
    assert "'nixl' is redirected to kvcellar" in caplog.text


def test_unclear_redirect_leaves_nixl_alone(monkeypatch, caplog):
    monkeypatch.setenv(plugin.REDIRECT_VARIABLE, "maybe")
    controller = Controller()
    attach(controller, "nixl")
    assert controller.calls[0][0] == "nixl"
    assert plugin.REDIRECT_VARIABLE in caplog.text and "maybe" in caplog.text


MISSING = [
    ("ARGUMENTS_TARGET", "sglang.srt.server_args.ServerArgs.no_such"),
    ("ARGUMENTS_TARGET", "sglang.srt.no_such_module.ServerArgs.add_cli_args"),
    ("ATTACH_TARGET", "sglang.srt.managers.cache_controller.NoSuchClass.attach_storage_backend"),
    ("ATTACH_PARAMETERS", ("storage_backend", "no_such_parameter")),
]


@pytest.mark.parametrize("name, value", MISSING)
def test_changed_sglang_makes_one_warning_that_names_it(name, value, monkeypatch, caplog):
    import sglang.srt.managers.cache_controller  # noqa: F401  (the process has a controller)
    from sglang.srt.plugins.hook_registry import HookRegistry

    registered = []
    monkeypatch.setattr(HookRegistry, "register", lambda target, *rest: registered.append(target))
    monkeypatch.setattr(plugin, name, value)
    with caplog.at_level(logging.WARNING):
        plugin.load()
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == 1
    named = value if isinstance(value, str) else "no parameter no_such_parameter"
    assert named in warnings[0] and "KvCellarStorage" in warnings[0]
    assert len(registered) == 1  # the other one is hooked all the same


def test_missing_hook_registry_makes_one_warning(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "sglang.srt.plugins.hook_registry", None)
    plugin.load()
    assert len(caplog.records) == 1
    assert "sglang.srt.plugins.hook_registry" in caplog.records[0].getMessage()


def test_missing_option_makes_a_warning(caplog):
    plugin._add_choice(None, argparse.ArgumentParser())
    assert plugin.OPTION in caplog.text


def test_choices_of_sglang_are_not_touched():
    choices = ["file", "nixl"]
    parser = argparse.ArgumentParser()
    option = parser.add_argument(plugin.OPTION, choices=choices)
    plugin._add_choice(None, parser)
    plugin._add_choice(None, parser)
    assert choices == ["file", "nixl"]
    assert option.choices == ["file", "nixl", "kvcellar"]


def test_installed_entry_point_is_this_function():
    from importlib.metadata import entry_points

    (point,) = (point for point in entry_points(group=processes.GROUP) if point.name == "kvcellar")
    assert point.load() is plugin.load


def test_whitelist_of_sglang_keeps_it_out(tmp_path):
    """SGLANG_PLUGINS names the plugins that are wanted: a site that has one must name kvcellar."""
    shown = run_python("""
from sglang.srt.plugins import load_plugins
from sglang.srt.plugins.hook_registry import HookRegistry
load_plugins()
print(sorted(HookRegistry._patched))
""", tmp_path, SGLANG_PLUGINS="other")
    assert shown.splitlines()[-1] == "[]"
