"""What the tests of the page share."""

import pytest
from browser import start

browser = pytest.fixture(scope="session")(start)
