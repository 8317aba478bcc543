# SPDX-License-Identifier: Apache-2.0
"""Around the calls of the data path: who is inside, what went wrong, what comes back then; and the
settings of the process that the storage changes while it is attached."""

from __future__ import annotations

import functools
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import kvcellar
from kvcellar.sglang.handles import Misuse

logger = logging.getLogger("kvcellar.sglang")
library_logger = logging.getLogger("kvcellar")

LOG_SECONDS = 30.0
LEVELS = (logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)
NAME = "kvcellar: "


def _log_line(level: int, text: str) -> None:
    # SGLang's format shows no logger's name.
    library_logger.log(LEVELS[min(max(level, 0), 3)], "%s%s",
                       "" if text.startswith(NAME) else NAME, text)


def start_logging() -> None:
    """Lines of the library go to the logger "kvcellar", from whatever thread they come."""
    kvcellar.set_log(_log_line, 3 if library_logger.isEnabledFor(logging.DEBUG) else 2)


class SwitchInterval:
    """sys.setswitchinterval() for as long as at least one storage asks for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._before = 0.0
        self._ours = 0.0

    def acquire(self, seconds: float) -> None:
        with self._lock:
            before = sys.getswitchinterval()
            if self._users == 0:
                self._before = before
            self._users += 1
            sys.setswitchinterval(seconds)
            self._ours = sys.getswitchinterval()
        logger.info("kvcellar: switch interval of the interpreter: %.0f us before, %.0f us now",
                    before * 1e6, self._ours * 1e6)

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            # Somebody else's later choice stays.
            if self._users == 0 and sys.getswitchinterval() == self._ours:
                sys.setswitchinterval(self._before)


switch_interval = SwitchInterval()


class Calls:
    """Counts the calls that are at work, so that close() can wait for them.

    close(finish) runs `finish` once no call is inside: now, when the last one leaves within the
    time, or by that one later.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._inside = 0
        self._closed = False
        self._finish: Callable[[], None] | None = None
        self._finished = False

    def enter(self) -> bool:
        with self._condition:
            if self._closed:
                return False
            self._inside += 1
            return True

    def leave(self) -> None:
        with self._condition:
            self._inside -= 1
            run = self._take_finish()
        self._run(run)

    def close(self, finish: Callable[[], None], seconds: float) -> bool:
        """True when it is finished. A second call only waits for the first."""
        with self._condition:
            if not self._closed:
                self._closed = True
                self._finish = finish
            run = self._take_finish()
        self._run(run)
        with self._condition:
            return self._condition.wait_for(lambda: self._finished, seconds)

    @property
    def closed(self) -> bool:
        return self._closed

    def _take_finish(self) -> Callable[[], None] | None:
        if self._inside or not self._closed:
            return None
        run, self._finish = self._finish, None
        return run

    def _run(self, run: Callable[[], None] | None) -> None:
        if run is None:
            return
        try:
            run()
        finally:
            with self._condition:
                self._finished = True
                self._condition.notify_all()


class Reports:
    """Errors of the data path: each kind is logged at once, then counted, at most once in 30 s."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds: dict[Any, tuple[float, int]] = {}

    def report(self, kind: Any, text: str, *args: Any, exc_info: bool = False) -> None:
        now = time.monotonic()
        with self._lock:
            last, silent = self._kinds.get(kind, (None, 0))
            if last is not None and now - last < LOG_SECONDS:
                self._kinds[kind] = (last, silent + 1)
                return
            self._kinds[kind] = (now, 0)
        if silent:
            text += f" ({silent} more since the last such line)"
        logger.error(NAME + text, *args, exc_info=exc_info)


def data_path(default: Callable[..., Any]) -> Callable[..., Any]:
    """A method that never raises: after close(), and when something is wrong, it returns
    default(first argument)."""

    def decorate(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
            first = args[0] if args else next(iter(kwargs.values()), None)
            if not self._calls.enter():
                return default(first)
            try:
                return method(self, *args, **kwargs)
            except Misuse as error:
                kind = (method.__name__, "misuse")
                self._reports.report(kind, "%s: %s", method.__name__, error)
            except kvcellar.Error as error:
                kind = (method.__name__, error.errno)
                self._reports.report(kind, "%s: %s", method.__name__, error)
            except Exception as error:
                kind = (method.__name__, type(error).__name__)
                self._reports.report(kind, "%s: %s", method.__name__, error, exc_info=True)
            finally:
                self._calls.leave()
            return default(first)

        return guarded

    return decorate


def all_false(keys: Any) -> list[bool]:
    return [False] * len(keys or ())


def all_none(keys: Any) -> list[None]:
    return [None] * len(keys or ())


def no_pool(transfers: Any) -> dict[Any, list[bool]]:
    return {t.name: [False] * len(t.keys or ()) for t in transfers or ()}
