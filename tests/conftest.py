"""What all tests share."""

from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
import torch
from commands import DONE, finished
from runs import tiny_model

torch.set_num_threads(1)  # the tests run in several processes at once


@pytest.fixture
def worker() -> Iterator[mock.Mock]:
    with mock.patch("ebcli.run.run", autospec=True) as patched:
        patched.return_value = finished(DONE)
        yield patched


@pytest.fixture
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty one, where each model is a tiny one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ebcli.network.load_model", tiny_model)
    return tmp_path
