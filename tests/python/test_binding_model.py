# SPDX-License-Identifier: Apache-2.0
"""Random calls of the extension module against a dict."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import kvcellar
from binding import Pages, mem

KEYS = [f"{number:064x}" for number in range(6)] + [b"\xff\0raw", "k\u00e9y", "a/b"]
PAGES = 6
keys = st.lists(st.sampled_from(KEYS), max_size=12, unique_by=lambda key: key)
one_key = st.sampled_from(KEYS)


class Machine(RuleBasedStateMachine):
    """A store in memory, with one pool of pages and single objects; both also as dicts."""

    @initialize(page_bytes=st.sampled_from([1, 7, 64, 511, 512, 4096, 5000]),
                checksum=st.sampled_from(["full", "sector", "none"]))
    def open(self, page_bytes: int, checksum: str) -> None:
        self.config = mem(checksum=checksum)
        self.pages = Pages(PAGES, page_bytes)
        self.stored: dict[str | bytes, bytes] = {}
        self.objects: dict[str | bytes, bytes] = {}
        self.is_open = False
        self.reopen()

    def reopen(self) -> None:
        if self.is_open:
            self.store.close()
        self.store = kvcellar.Store(self.config)
        self.namespace = self.store.namespace("model", identity="1")
        self.pool = self.pages.pool(self.namespace)
        self.is_open = True

    @rule(keys=keys, fill=st.integers(0, 255), overwrite=st.booleans(), data=st.data())
    def set(self, keys: list[str | bytes], fill: int, overwrite: bool, data: st.DataObject) -> None:
        places = data.draw(st.lists(st.integers(0, PAGES - 1), min_size=len(keys),
                                    max_size=len(keys)))
        for place in set(places):
            self.pages.fill(place, fill + place)
        result = self.pool.set(keys, places, overwrite=overwrite)
        assert result.statuses == ["ok"] * len(keys)
        for at, (key, place) in enumerate(zip(keys, places, strict=True)):
            kept = key in self.stored and not overwrite
            assert result.causes[at] == ("existed" if kept else "none")
            if not kept:
                self.stored[key] = self.pages[place]

    @rule(keys=keys, started=st.booleans())
    def get(self, keys: list[str | bytes], started: bool) -> None:
        for start in range(0, len(keys), PAGES):
            some = keys[start:start + PAGES]
            if started:
                transfer = kvcellar.Transfer("get", self.pool, some, range(len(some)))
                result, = self.store.start([transfer]).wait()
            else:
                result = self.pool.get(some, range(len(some)))
            assert result.ok == [key in self.stored for key in some]
            for place, key in enumerate(some):
                if key in self.stored:
                    assert self.pages[place] == self.stored[key]
                else:
                    assert (result[place], result.causes[place]) == ("miss", "absent")

    @rule(keys=keys, stop=st.booleans())
    def exists(self, keys: list[str | bytes], stop: bool) -> None:
        expected = ["ok" if key in self.stored else "miss" for key in keys]
        if stop and "miss" in expected:
            first = expected.index("miss")
            expected[first + 1:] = ["skipped"] * (len(keys) - first - 1)
        result = self.pool.exists(keys, stop_at_miss=stop)
        assert result.statuses == expected
        assert result.prefix_count == (expected + ["miss"]).index("miss")
        assert result.present == bytes(status == "ok" for status in expected)

    @rule(keys=keys)
    def remove(self, keys: list[str | bytes]) -> None:
        result = self.pool.remove(keys)
        assert result.ok == [self.stored.pop(key, None) is not None for key in keys]

    @rule(key=one_key, data=st.binary(max_size=3000), overwrite=st.booleans())
    def put(self, key: str | bytes, data: bytes, overwrite: bool) -> None:
        kept = not overwrite and len(self.objects.get(key, data + b"x")) == len(data)
        assert self.namespace.put("side", key, data, overwrite=overwrite) is not kept
        if not kept:
            self.objects[key] = data

    @rule(key=one_key)
    def get_object(self, key: str | bytes) -> None:
        assert self.namespace.get("side", key) == self.objects.get(key)

    @rule(keys=keys)
    def get_objects(self, keys: list[str | bytes]) -> None:
        found = [key for key in keys if key in self.objects]
        buffers = [bytearray(len(self.objects[key])) for key in found]
        assert self.namespace.get_many("side", found, buffers) == [0] * len(found)
        assert [bytes(buffer) for buffer in buffers] == [self.objects[key] for key in found]
        assert self.namespace.exists_many("side", keys) == [key in self.objects for key in keys]

    @rule(key=one_key)
    def remove_object(self, key: str | bytes) -> None:
        assert self.namespace.remove("side", key) is (self.objects.pop(key, None) is not None)

    @rule()
    def open_again(self) -> None:
        self.reopen()

    @precondition(lambda self: self.stored)
    @rule()
    def clear(self) -> None:
        report = self.namespace.clear()
        assert report["objects"] == len(self.stored) + len(self.objects)
        assert report["failed"] == 0
        self.stored.clear()
        self.objects.clear()

    @invariant()
    def as_many_as_the_model_has(self) -> None:
        if getattr(self, "is_open", False):
            assert len(self.store.list()) == len(self.stored) + len(self.objects)

    def teardown(self) -> None:
        if getattr(self, "is_open", False):
            self.store.close()


Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None,
                                      database=None)
test_random_calls = Machine.TestCase
