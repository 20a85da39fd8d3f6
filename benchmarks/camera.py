"""Frames per second that the live page's camera gets of the bundled EfficientNet-Lite0, and what a frame costs.

    python -m benchmarks.camera             # some seconds
    python -m benchmarks.camera --threads 2

The frames are those of the page: different JPEGs of 480 x 360 pixels, each decoded in a worker process. A frame
takes one plain pass for the likeliest classes, and one map. The page sends the next frame when the answer is there, so
frames per second are at most one over the seconds of a frame. CPU seconds are those of this process alone, which hardly
depend on other load.
"""

from __future__ import annotations

import argparse
import io
import time
from pathlib import Path

import torch
from PIL import Image, ImageChops

from ebcli.files.sources import Source
from ebcli.run.plan import RunPlan
from ebcli.serve.network import Network
from ebcli.workers import Workers

GOAL = 5  # frames per second
SIZE = (480, 360)
PHOTO = Path(__file__).resolve().parents[1] / "sample_images/chelsea.jpg"


def frames(count: int) -> list[Source]:
    """A photo that moves sideways."""
    photo = Image.open(PHOTO).convert("RGB").resize(SIZE)
    sources = []
    for step in range(count):
        file = io.BytesIO()
        ImageChops.offset(photo, 4 * step, 0).save(file, "JPEG", quality=80)
        sources.append(Source(Path("camera.jpg"), content=file.getvalue()))
    return sources


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--frames", type=int, default=60)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with Workers(1) as workers:
        plan = RunPlan.from_values(images=(PHOTO,), model="efficientnet_lite0", device="cpu")
        network = Network(plan, workers)
        network.load()
        print("| question | ms per frame | CPU ms | frames per second | goal |\n|---|--:|--:|--:|--:|")
        for name, query in (
            ("the likeliest class", {}),
            ("a held class", {"target": "285"}),
            ("one class against another", {"target": "285", "against": "282"}),
        ):
            question = network.plan(query)
            first, *others = frames(1 + options.frames)
            network.explain_frame(question, first)
            wall, cpu = time.perf_counter(), time.process_time()
            for frame in others:
                network.explain_frame(question, frame)
            seconds = (time.perf_counter() - wall) / len(others)
            cpu_seconds = (time.process_time() - cpu) / len(others)
            print(
                f"| {name} | {1000 * seconds:.0f} | {1000 * cpu_seconds:.0f} | {1 / seconds:.1f} | {GOAL} |"
            )


if __name__ == "__main__":
    main()
