# SPDX-License-Identifier: Apache-2.0
"""Options that the tests of this folder are run with, and what they share."""

import tempfile
from collections.abc import Iterator

import pytest


@pytest.fixture
def folder() -> Iterator[str]:
    """A folder of the test's own."""
    with tempfile.TemporaryDirectory() as path:
        yield path


def pytest_addoption(parser, pluginmanager):
    """Knows `-o asyncio_mode=...` where pytest-asyncio, whose option it is, is not installed.

    No test here is asynchronous. The option is on the command line that SGLang's NIXL backend
    gives for its tests; without the plugin pytest warns about it, an error under `-W error`.
    """
    if not pluginmanager.hasplugin("asyncio"):
        parser.addini("asyncio_mode", "belongs to pytest-asyncio; without effect", default="strict")
