# SPDX-License-Identifier: Apache-2.0
"""The stubs, the package and the extension module say the same."""

import ast
import importlib.machinery
import inspect
import pathlib
import re
from typing import Any

import pytest

import kvcellar
from binding import run_python
from kvcellar import _kvcellar

STUBS = pathlib.Path(kvcellar.__file__).with_name("_kvcellar.pyi")
TREE = ast.parse(STUBS.read_text(encoding="utf-8"))
CLASSES = {node.name: node for node in TREE.body if isinstance(node, ast.ClassDef)}
FUNCTIONS = {node.name: node for node in TREE.body if isinstance(node, ast.FunctionDef)}
# Types of the stubs alone.
ONLY_STUBS = {"Part", "PoolInfo", "ObjectInfo", "_Tensor"}


def public(names: Any) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def shape_of_stub(node: ast.FunctionDef) -> list[tuple[str, str, Any]]:
    """(name, kind, default) of each parameter."""
    arguments = node.args
    placed = arguments.posonlyargs + arguments.args
    defaults = [inspect.Parameter.empty] * (len(placed) - len(arguments.defaults)) + [
        ast.literal_eval(default) for default in arguments.defaults]
    shape = [(argument.arg, "placed", default)
             for argument, default in zip(placed, defaults, strict=True)]
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        value = inspect.Parameter.empty if default is None else ast.literal_eval(default)
        shape.append((argument.arg, "named", value))
    return shape


def shape_of(function: Any) -> list[tuple[str, str, Any]]:
    return [(each.name, "named" if each.kind is each.KEYWORD_ONLY else "placed", each.default)
            for each in inspect.signature(function).parameters.values()]


def members(name: str) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in CLASSES[name].body if isinstance(node, ast.FunctionDef)}


def test_the_package_has_what_the_stubs_have() -> None:
    expected = (set(CLASSES) | set(FUNCTIONS)) - ONLY_STUBS
    assert public(vars(_kvcellar)) == expected
    assert set(kvcellar.__all__) == expected | {"__version__"}
    for name in kvcellar.__all__:
        assert getattr(kvcellar, name) is getattr(_kvcellar, name)
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", kvcellar.__version__)
    assert STUBS.with_name("py.typed").exists()


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_functions(name: str) -> None:
    function = getattr(kvcellar, name)
    assert shape_of(function) == shape_of_stub(FUNCTIONS[name])
    assert inspect.getdoc(function)


@pytest.mark.parametrize("name", sorted(set(CLASSES) - ONLY_STUBS - {"Error", "ConfigError"}))
def test_classes(name: str) -> None:
    kind = getattr(kvcellar, name)
    stubs = members(name)
    assert kind.__module__ == "kvcellar"
    assert inspect.getdoc(kind)
    assert public(vars(kind)) == public(stubs)
    for member, node in stubs.items():
        if member == "__init__":
            assert shape_of(kind) == shape_of_stub(node)[1:]
            continue
        found = vars(kind)[member]
        assert inspect.getdoc(found), member
        is_property = any(isinstance(each, ast.Name) and each.id == "property"
                          for each in node.decorator_list)
        assert isinstance(found, type(type.__dict__["__dict__"])) is is_property, member
        if not is_property and not isinstance(found, type(int.__add__)):
            assert shape_of(found) == shape_of_stub(node), member


def test_errors() -> None:
    assert kvcellar.Error.__mro__[1] is OSError
    assert issubclass(kvcellar.ConfigError, kvcellar.Error)
    assert issubclass(kvcellar.ConfigError, ValueError)
    for kind in (kvcellar.Error, kvcellar.ConfigError):
        assert kind.__module__ == "kvcellar"
        assert kind.__doc__


def test_nothing_heavy_is_imported() -> None:
    done = run_python("import sys; before = set(sys.modules); import kvcellar; "
                      "print('\\n'.join(set(sys.modules) - before))")
    assert "kvcellar._kvcellar" in done.stdout.split(), done.stderr
    heavy = {"torch", "numpy", "sglang", "asyncio", "ctypes", "typing", "subprocess", "logging"}
    assert not heavy & set(done.stdout.split()), done.stderr


def test_the_extension_is_of_the_stable_abi() -> None:
    path = pathlib.Path(_kvcellar.__file__)
    assert path.name == "_kvcellar.abi3.so"
    assert ".abi3.so" in importlib.machinery.EXTENSION_SUFFIXES


def test_the_module_runs_the_command() -> None:
    done = run_python("import runpy, sys; sys.argv[1:] = ['--version']; "
                      "runpy.run_module('kvcellar', run_name='__main__', alter_sys=True)")
    assert done.stdout.split() == ["kvcellar", kvcellar.__version__], done.stderr
    assert done.returncode == 0
