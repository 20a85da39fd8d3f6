"""What the tests of remote files share."""

from collections.abc import Iterator

import pytest
from web_server import Server


@pytest.fixture
def server() -> Iterator[Server]:
    started = Server()
    yield started
    started.close()
