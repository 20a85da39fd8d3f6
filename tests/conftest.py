"""What all tests share."""

import functools
import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Generator, Iterator
from importlib import metadata
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from color_net import load_colors
from PIL import ImageDraw
from runs import no_references, tiny_model
from stub_run import DONE, finished
from watch import ELSEWHERE, WATCH

torch.set_num_threads(1)  # the tests run in several processes at once
os.environ["OMP_NUM_THREADS"] = "1"  # and so do the processes that they start
os.environ["XDG_CACHE_HOME"] = str(Path(__file__).parents[1] / "build/cache")  # not the user's
# which nohup, and a script that starts the tests in the background, have these processes ignore
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
for device in (torch.cuda, torch.xpu, torch.mtia):
    if not device.is_available():  # PyTorch keeps each seed for it, with a stack trace
        device.manual_seed_all = lambda _seed: None
_entry_points = functools.cache(lambda _path, **wanted: entry_points(**wanted))
metadata.entry_points = lambda **wanted: _entry_points(
    tuple(sys.path), **wanted
)  # which reads all that is installed


@pytest.fixture(autouse=True)
def no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of a few files within the process of a test start none, unless the test says so."""
    monkeypatch.setattr("ebcli.workers.FEWEST", 0)


@pytest.fixture(autouse=True)
def little_noise(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Maps are compared with those of two pictures of noise, unless a test is about their strength."""
    if request.node.originalname not in getattr(request.module, "ALL_NOISE", ()):
        monkeypatch.setattr("ebcli.run.controls.PICTURES", 2)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In continuous integration, nothing that a test needs is missing but the rights of root."""
    report = yield
    if report.skipped and "CI" in os.environ and "only root may mount" not in str(report.longrepr):
        report.outcome, report.longrepr = "failed", f"skipped in continuous integration: {report.longrepr}"
    return report


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """Whichever tests the same process ran before."""
    torch.manual_seed(0)


@pytest.hookimpl(tryfirst=True)  # before those of other marks are dropped
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Browsers take long to start, and so do all cases of some tests."""
    seen = Counter[str]()
    for item in items:
        test, case, _ = item.nodeid.partition("[")
        sampled = item.get_closest_marker("one_in") if case else None
        if {"browser", "chromium"} & {*getattr(item, "fixturenames", ())}:
            item.add_marker("release")
        elif (
            sampled
            and not item.get_closest_marker("slow")
            and sum(divmod(seen[test], sampled.args[0])) % sampled.args[0]
        ):
            item.add_marker(
                "release"
            )  # of each row of n cases, all but one, which is the next one in the next row
        seen[test] += 1


def pytest_collection_finish() -> None:
    """The collector of garbage need not look through all modules and tests again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)  # nor after every 700 new objects


@pytest.fixture
def worker() -> Iterator[mock.Mock]:
    """Stands in for the run; a gallery page would need its records."""
    page = mock.patch("ebcli.gallery.page.write_gallery", autospec=True)
    with mock.patch("ebcli.run.engine.run", autospec=True) as patched, page:
        patched.return_value = finished(DONE)
        yield patched


@pytest.fixture
def colors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model of eb-saliency benchmark recognizes colors."""
    monkeypatch.setattr("ebcli.evaluate.benchmark.load_model", load_colors)


@pytest.fixture
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty one, where each model is a tiny one, whose random maps need not be stronger than noise."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ebcli.run.controls.references", no_references)
    monkeypatch.setattr("ebcli.run.explainer.load_model", tiny_model)
    return tmp_path


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float, str]]:
    """The left and the top of each text that figures show, and the text."""
    found: list[tuple[float, float, str]] = []
    real = ImageDraw.ImageDraw.text

    def text(
        self: ImageDraw.ImageDraw, xy: tuple[float, float], text: str, *rest: Any, **options: Any
    ) -> None:
        found.append((*xy, text))
        real(self, xy, text, *rest, **options)

    monkeypatch.setattr(ImageDraw.ImageDraw, "text", text)
    return found


@pytest.fixture
def watched(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail if anything opens a file that is not the test's or installed, starts a program or asks a server."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path_factory.getbasetemp()))
    with WATCH.over(tmp_path_factory.getbasetemp()):
        WATCH.seen.clear()
        yield
    assert not WATCH.seen


@pytest.fixture
def elsewhere(watched: None, tmp_path: Path) -> Path:
    """A directory with files that nobody names."""
    folder = tmp_path / ELSEWHERE
    folder.mkdir()
    return folder
