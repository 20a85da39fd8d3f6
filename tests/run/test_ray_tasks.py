"""The tasks of a Ray cluster, without one."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from plans import make_plan

from ebcli.files.directory import ResultFiles
from ebcli.files.ownership import OwnFiles
from ebcli.files.sources import Source
from ebcli.files.storage import Stamp
from ebcli.run.prepare import prepare
from ebcli.run.ray_tasks import ExplainerActor, Row, TaskContext
from ebcli.run.stages import NetworkInput

PAUSE = 0.05  # seconds


def test_a_network_s_images_say_how_long_it_waited_for_their_batch(tmp_path: Path) -> None:
    plan = make_plan("missing.jpg", output=tmp_path)
    context = TaskContext(
        tmp_path, prepare(plan).stages, ResultFiles(tmp_path, tmp_path, overwrite=True, own=OwnFiles(tmp_path)), None
    )
    actor, source = ExplainerActor(plan, context), Source(Path("a.jpg"), named=True)

    def waited(images: int) -> float:
        pixels = np.full((224, 224, 3), 128, np.uint8)
        loaded = np.empty(images, object)
        loaded[:] = [NetworkInput(pixels, Stamp(1, 1), 0.0, (32, 32)) for _ in range(images)]
        batch: Row = {"source": np.array([source] * images, object), "loaded": loaded}
        return sum(item.waited for item in actor(batch)["loaded"])

    assert waited(2) == 0  # the cluster was starting
    before = time.perf_counter()
    waited(1)
    start = time.perf_counter()
    time.sleep(PAUSE)
    pause = time.perf_counter() - start
    assert pause <= waited(2) <= time.perf_counter() - before
