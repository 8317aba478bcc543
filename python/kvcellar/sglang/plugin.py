# SPDX-License-Identifier: Apache-2.0
"""Makes `kvcellar` a name that SGLang's `--hicache-storage-backend` takes.

SGLang calls load() in each of its processes: the entry point `kvcellar` of the group
`sglang.srt.plugins`. It registers two hooks with SGLang's HookRegistry:

- after ServerArgs.add_cli_args, `kvcellar` is one more choice of the option, whose choices are
  fixed in SGLang; Engine(hicache_storage_backend="kvcellar") needs nothing, it checks no choices;
- around HiCacheController.attach_storage_backend, which both a start with the option and the
  attach endpoint reach, the name becomes SGLang's `dynamic` backend with interface_v1 and the class
  KvCellarStorage. The name stays what was asked for everywhere else: server arguments, the status
  endpoint, the label of the metrics, the logs.

Both pass through unchanged what names another backend. With KVCELLAR_SGLANG_REDIRECT_NIXL=1 the
name `nixl` is taken too. Nothing here runs while pages are stored or loaded.

Importing this module imports neither torch nor SGLang.
"""

import inspect
import logging
import os
import pkgutil
import sys
from collections.abc import Callable, Mapping
from typing import Any

NAME = "kvcellar"
REDIRECT_VARIABLE = "KVCELLAR_SGLANG_REDIRECT_NIXL"
OPTION = "--hicache-storage-backend"
BACKEND = {
    "backend_name": NAME,
    "module_path": "kvcellar.sglang",
    "class_name": "KvCellarStorage",
}

ARGUMENTS_TARGET = "sglang.srt.server_args.ServerArgs.add_cli_args"
ATTACH_TARGET = "sglang.srt.managers.cache_controller.HiCacheController.attach_storage_backend"
ATTACH_PARAMETERS = ("storage_backend", "storage_backend_extra_config")
# A process without either has no controller, and does not need to load one for a hook.
ATTACH_MODULES = ("sglang.srt.managers.scheduler", "sglang.srt.managers.cache_controller")

logger = logging.getLogger(__name__)


def load() -> None:
    """Register the hooks. Called by SGLang once per process; never raises.

    What a changed SGLang no longer has is named in one warning; the rest is registered.
    """
    try:
        missing = _register_hooks()
    except Exception as error:  # whatever happens here, SGLang starts
        missing = [f"sglang.srt.plugins.hook_registry ({_text_of(error)})"]
    if missing:
        logger.warning(
            "kvcellar: SGLang %s has changed, the name '%s' will not work as %s: %s. Use the "
            "backend 'dynamic' instead, with backend_name '%s', module_path '%s', class_name '%s' "
            "and interface_v1 1 in its extra config.",
            _sglang_version(), NAME, OPTION, "; ".join(missing), *BACKEND.values(),
        )


def dynamic_config(extra_config: Mapping[str, Any] | None) -> dict[str, Any]:
    """The configuration of SGLang's `dynamic` backend that loads KvCellarStorage.

    A copy of extra_config in its order, which says which section of plugins comes first, with the
    class named behind. interface_v1 (whole batches, without copies) unless it was set already.
    """
    config = dict(extra_config or {})
    config.setdefault("interface_v1", 1)
    return config | BACKEND


def redirects_nixl() -> bool:
    """Whether the environment asks that `nixl` means kvcellar too."""
    text = os.environ.get(REDIRECT_VARIABLE, "").strip().lower()
    if text in ("1", "true", "yes", "on"):
        return True
    if text not in ("", "0", "false", "no", "off"):
        logger.warning("kvcellar: %s is %r, neither 1 nor 0: nixl is left alone",
                       REDIRECT_VARIABLE, text)
    return False


def _register_hooks() -> list[str]:
    """Register what can be registered; the targets that are missing, with the cause."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    missing = []
    error = _why_unusable(ARGUMENTS_TARGET, ())
    if error:
        missing.append(error)
    else:
        HookRegistry.register(ARGUMENTS_TARGET, _add_choice, HookType.AFTER)
    if any(name in sys.modules for name in ATTACH_MODULES):
        error = _why_unusable(ATTACH_TARGET, ATTACH_PARAMETERS)
        if error:
            missing.append(error)
        else:
            HookRegistry.register(ATTACH_TARGET, _attach, HookType.AROUND)
    return missing


def _why_unusable(target: str, parameters: tuple[str, ...]) -> str | None:
    """None, or the target with why it cannot be hooked. Imports the target's module."""
    owner, _, name = target.rpartition(".")
    try:
        found = inspect.signature(getattr(pkgutil.resolve_name(owner), name)).parameters
    except Exception as error:  # a module may fail to import in any way
        return f"{target} ({_text_of(error)})"
    absent = [parameter for parameter in parameters if parameter not in found]
    return f"{target} (has no parameter {', '.join(absent)})" if absent else None


def _add_choice(result: Any, parser: Any, *args: Any, **kwargs: Any) -> None:
    """After ServerArgs.add_cli_args(parser): the option takes our name too."""
    # argparse has no public way to find an option; the tuple of actions has been there forever.
    actions = [action for action in getattr(parser, "_actions", None) or ()
               if OPTION in (getattr(action, "option_strings", None) or ())]
    if not actions:
        logger.warning("kvcellar: SGLang %s has no option %s", _sglang_version(), OPTION)
    for action in actions:
        # The list belongs to SGLang and lasts longer than the parser: a new one is set.
        if action.choices is not None and NAME not in action.choices:
            action.choices = [*action.choices, NAME]


def _attach(original: Callable[..., Any], controller: Any, *args: Any, **kwargs: Any) -> Any:
    """Around HiCacheController.attach_storage_backend: our name becomes the dynamic backend."""
    try:
        call = inspect.signature(original).bind(controller, *args, **kwargs)
    except TypeError:  # a wrong call: SGLang's own function says so
        return original(controller, *args, **kwargs)
    name = call.arguments["storage_backend"]
    if name != NAME and not (name == "nixl" and redirects_nixl()):
        return original(controller, *args, **kwargs)

    config = dynamic_config(call.arguments.get("storage_backend_extra_config"))
    if name != NAME:
        logger.info("kvcellar: storage backend '%s' is redirected to kvcellar (%s)",
                    name, REDIRECT_VARIABLE)
    call.arguments["storage_backend"] = "dynamic"
    call.arguments["storage_backend_extra_config"] = config
    result = original(*call.args, **call.kwargs)
    # A second attach compares with it: it has to be the name that was asked for.
    controller.storage_backend_type = name
    return result


def _text_of(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _sglang_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("sglang")
    except PackageNotFoundError:
        return "of unknown version"
