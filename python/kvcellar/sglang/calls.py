# SPDX-License-Identifier: Apache-2.0
"""Around the calls of the data path: who is inside, what went wrong, what comes back then; and the
settings of the process that the storage changes while it is attached."""

from __future__ import annotations

import functools
import inspect
import logging
import sys
import threading
import time
from collections.abc import Callable
from itertools import islice
from typing import Any

import kvcellar
from kvcellar.sglang.handles import Misuse

logger = logging.getLogger("kvcellar.sglang")
library_logger = logging.getLogger("kvcellar")

LOG_SECONDS = 30.0
CLOSE_LOOK_SECONDS = 0.1
KEYS_MAX = 1 << 24  # more is no list of keys
TRANSFERS_MAX = 4096
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
        self._lock = threading.RLock()  # a signal handler may come back to it
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
    """The calls that are at work, so that close() can wait for them.

    A call adds a token of its own to `inside`, then looks at `closed`; it discards the token when
    it ends and then, when `closed` is set, calls settle(). Set operations are atomic and need no
    lock: a signal handler that raises finds no place between them where a call would count for
    ever, and one that uses the storage meets no lock that its own thread holds.

    close(finish) runs `finish` once no call is inside: now, when the last one leaves within the
    time, or by that one later. `finish` may be interrupted and is then run again.
    """

    def __init__(self) -> None:
        self.inside: set[object] = set()
        self.closed = False
        self._condition = threading.Condition()
        self._finish: Callable[[], None] | None = None
        self._running = False
        self._finished = False

    def close(self, finish: Callable[[], None], seconds: float) -> bool:
        """True when it is finished. A second call only waits for the first."""
        with self._condition:
            if self._finish is None:
                self._finish = finish
            self.closed = True
        end = time.monotonic() + seconds
        while True:
            self.settle()
            with self._condition:
                left = end - time.monotonic()
                if self._finished or left <= 0:
                    return self._finished
                # A call that was interrupted on its way out notifies nobody.
                self._condition.wait(min(left, CLOSE_LOOK_SECONDS))

    def settle(self) -> None:
        """Runs `finish` when it is due. Never raises what `finish` raises: that is logged."""
        mine = False
        try:
            with self._condition:
                if self._running or self._finished or self.inside or self._finish is None:
                    return
                self._running = mine = True
            self._finish()
            self._finished = True
        except Exception as error:
            self._finished = True
            logger.error("kvcellar: closing: %s", error, exc_info=True)
        finally:
            if mine:
                self._running = False
                with self._condition:
                    self._condition.notify_all()


class Reports:
    """Errors of the data path: each kind is logged at once, then counted, at most once in 30 s."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may come back to it
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
        name = method.__name__
        first_name = list(inspect.signature(method).parameters)[1]

        @functools.wraps(method)
        def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
            calls, reports = self._calls, self._reports
            token = object()
            try:
                calls.inside.add(token)
                if not calls.closed:
                    return method(self, *args, **kwargs)
            except Misuse as error:
                reports.report((name, "misuse"), "%s: %s", name, error)
            except kvcellar.Error as error:
                reports.report((name, error.errno), "%s: %s", name, error)
            except Exception as error:
                kind = (name, type(error).__name__)
                reports.report(kind, "%s: %s", name, error, exc_info=True)
            finally:
                # Of C and the first in here: no signal handler comes before it.
                calls.inside.discard(token)
                if calls.closed:
                    calls.settle()
            return default(args[0] if args else kwargs.get(first_name))

        return guarded

    return decorate


# What a failed call returns, of whatever it was given: what has no length has no results.


def all_false(keys: Any) -> list[bool]:
    return [False] * _length(keys)


def all_none(keys: Any) -> list[None]:
    return [None] * _length(keys)


def no_pool(transfers: Any) -> dict[Any, list[bool]]:
    missed: dict[Any, list[bool]] = {}
    try:
        for transfer in islice(transfers, TRANSFERS_MAX):
            try:
                missed[transfer.name] = all_false(transfer.keys)
            except Exception:  # no transfer, or a name that no result can have
                continue
    except Exception:  # nothing to go through
        pass
    return missed


def _length(keys: Any) -> int:
    try:
        return min(len(keys), KEYS_MAX)
    except Exception:
        return 0
