"""How images flow through a run: their order, how many are under way at a time, and what memory that takes."""

import gc
import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner
from PIL import Image
from plans import make_plan
from runs import in_process, invoke, number_of_tensors, photos, until, use_tiny_model

import ebcli.drawing.frame_maps
import ebcli.files.directory
import ebcli.files.media.medium
import ebcli.run.explainer
import ebcli.run.pipeline
import ebcli.run.rendering
from ebcli.cli.saliency import main
from ebcli.run.reading import Reader

pytestmark = pytest.mark.usefixtures("working_directory")


def test_the_order_on_stdout_is_that_of_the_inputs() -> None:
    photos(Path("photos"), 9)
    Image.new("RGB", (2000, 1500)).save("photos/0/0000.jpg")  # takes longer than the others
    result = CliRunner().invoke(main, ["--layer", "2", "--workers", "2", "--json", "photos"])
    inputs = [json.loads(line)["input"] for line in result.stdout.splitlines()]
    assert inputs == sorted(inputs)
    assert len(inputs) == 9


def test_one_image_starts_no_process() -> None:
    photos(Path("photos"), 1)
    with mock.patch("ebcli.workers.Process", side_effect=AssertionError("a process was started")):
        result = CliRunner().invoke(main, ["--layer", "2", "photos"])
    assert result.exit_code == 0, result.stderr


def test_few_images_are_under_way_at_a_time_however_slow_the_one_part_or_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    photos(Path("photos"), 40)
    seen, explained, drawn = [], [], []

    def counted(done: list[int], real: Any, may_start: Callable[[], bool] = lambda: True) -> Any:
        def task(*arguments: Any) -> Any:
            until(may_start)
            value = real(*arguments)
            done.append(0)
            return value

        return task

    def is_network_ahead() -> bool:  # at first the drawing waits for the network
        return len(explained) > 20 or len(explained) - len(drawn) >= 2 * 2

    monkeypatch.setattr(Reader, "open", counted(seen, Reader.open))
    monkeypatch.setattr(
        ebcli.run.pipeline, "render", counted(drawn, ebcli.run.pipeline.render, is_network_ahead)
    )
    real = ebcli.run.explainer.Explainer.explain

    def explain(self: Any, images: Any, *others: Any) -> Any:
        if 20 < len(explained) < 36:  # and then the network for the reading, of at least the next batch
            until(lambda: len(seen) - len(explained) >= 2 * 2)
        found = real(self, images, *others)
        ahead.append(len(seen) - len(explained))
        explained.extend([0] * len(images))
        behind.append(len(explained) - len(drawn))
        return found

    ahead: list[int] = []
    behind: list[int] = []
    monkeypatch.setattr(ebcli.run.explainer.Explainer, "explain", explain)
    result = invoke("--batch-size", "2", "photos")
    assert result.exit_code == 0, result.output  # neither waits in vain
    assert len(drawn) == 40
    assert max(ahead) <= 3 * 2
    assert max(behind) <= (2 + 2) * 2


@pytest.mark.parametrize("is_large", [False, True])
def test_an_image_does_not_wait_long_for_others_of_its_size(
    is_large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records come in order, so all others would wait, too; and a large image takes much memory meanwhile."""
    Image.new("RGB", (90, 30)).save("first.png")  # alone of its shape
    for number in range(60):
        Image.new("RGB", (30, 30), (number, 0, 0)).save(f"image{number:02}.png")
    if is_large:
        monkeypatch.setattr(
            "ebcli.run.pipeline._LARGE", 24 * 24 * 3
        )  # bytes, as many as those of the square ones
    batches: list[int] = []
    real = ebcli.run.explainer.Explainer.explain

    def explain(self: Any, images: Any, *others: Any) -> Any:
        if images[0].form != images[0].pixels.shape[:2] and images[0].pixels.shape[1] > 24:
            batches.append(0)
        batches.append(len(images))
        return real(self, images, *others)

    monkeypatch.setattr(ebcli.run.explainer.Explainer, "explain", explain)
    result = invoke("--batch-size", "2", "first.png", *map(str, sorted(Path().glob("image*.png"))))
    assert result.exit_code == 0, result.stderr
    assert batches.count(0) == 1
    assert sum(batches[: batches.index(0)]) == 0 if is_large else 2 <= sum(batches[: batches.index(0)]) <= 20
    assert sorted(batches) == [0, 1, *[2] * 30]


def traced_bytes() -> int:
    """Bytes that Python and NumPy hold."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def test_memory_does_not_grow_with_the_number_of_images() -> None:
    from ebcli.run.engine import run

    photos(Path("photos"), 20)
    images = []
    for number in range(90):
        images.append(Path(f"links/{number}.jpg"))
        images[-1].parent.mkdir(exist_ok=True)
        os.link(f"photos/{number % 20 % 3}/{number % 20:04}.jpg", images[-1])
    sizes = {}
    tracemalloc.start()
    try:
        for number, record in enumerate(run(make_plan(*images, layer=("2",), workers=0)).results):
            assert (record.status, record.error) == ("done", None)
            if number in (29, 79):
                sizes[number] = traced_bytes()
    finally:
        tracemalloc.stop()
    before, after = sizes.values()
    assert after - before < 100 * 1000  # what the network gets of a photo has 7,000 bytes


@pytest.mark.release
def test_a_run_holds_no_tensors_of_its_images() -> None:
    photos(Path("photos"), 20)
    in_process(run_on_one_and_on_twenty)


def run_on_one_and_on_twenty() -> None:
    from ebcli.run.engine import run

    use_tiny_model()
    runs = []
    tensors = []
    for number, images in enumerate(["photos/0/0000.jpg", "photos"]):
        work = run(make_plan(Path(images), layer=("2",), workers=0, output=Path(f"maps{number}")))
        runs.append((work, [record.status for record in work.results]))
        tensors.append(number_of_tensors())
    assert [len(statuses) for _, statuses in runs] == [1, 20]
    before, after = tensors
    assert after < before + 19
