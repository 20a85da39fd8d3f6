"""Cost of ``--engine ray`` relative to the local engine on one machine, and the speed-up of a second worker.

    python -m benchmarks.cluster                 # ten minutes
    python -m benchmarks.cluster --images 240    # fewer images

Times are those between results, from one fifth to nine tenths of them, so that start and end do not count. Networks
compute with one thread, as on Ray. Run this on an idle machine with at least two CPUs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from PIL import Image
from ray.cluster_utils import Cluster

from ebcli.files.directory import OutputFolder
from ebcli.files.sources import Source
from ebcli.run.plan import RunPlan
from ebcli.run.prepare import prepare
from ebcli.run.rendering import render

ROOT = Path(__file__).resolve().parents[1]
PHOTOS = [ROOT / f"sample_images/{name}.jpg" for name in ("chelsea", "coffee", "rocket")]
NETWORKS = {"EfficientNet-Lite0": [], "VGG-16": ["--model", "vgg16", "--weights", "none"]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--images", type=int, default=480, help="images for EfficientNet-Lite0; a quarter for VGG-16 (480)"
    )
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    cost(options.images)
    # one CPU more than two workers, for drawing
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 3, "include_dashboard": False})
    try:
        os.environ["RAY_ADDRESS"] = cluster.address
        ray = ["--engine", "ray", "--workers"]
        engines = {"local": ["--workers", "1"], "1 worker": [*ray, "1"], "2 workers": [*ray, "2"]}
        for network, model in NETWORKS.items():
            count = options.images if not model else options.images // 4
            measure(network, model, engines, count, options.rounds)
    finally:
        cluster.shutdown()


def cost(count: int) -> None:
    """Print the CPU seconds per image on the network (g), and for decoding and drawing (p)."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        plan = RunPlan.from_values(
            images=(small(0),), fit="crop", output=Path(name), device="cpu", batch_size=8
        )
        folder = OutputFolder(Path(name), overwrite=True)
        prepared = prepare(plan, folder)
        sources = [Source(small(i)) for i in range(count // 8 * 8)]
        start = time.process_time()
        loaded = [prepared.reader.load(source) for source in sources]
        decoded = time.process_time()
        explanations = prepared.explainer.explain([one for one in loaded if one is not None])
        computed = time.process_time()
        with folder:
            for source, one, explanation in zip(sources, loaded, explanations, strict=True):
                drawn = render(source, one, prepared.reader, prepared.options, explanation, None)
                folder.add(drawn.files, prepared.record(source, "done"))
        end = time.process_time()
    g, p = (computed - decoded) / len(sources), (end - computed + decoded - start) / len(sources)
    print(f"EfficientNet-Lite0, one photo of 500 pixels: g = {g:.4f} s, p = {p:.4f} s of a CPU", flush=True)


def measure(network: str, model: list[str], engines: dict[str, list[str]], count: int, rounds: int) -> None:
    seconds: dict[str, list[float]] = {engine: [] for engine in engines}
    for _ in range(rounds):
        for engine, options in engines.items():
            seconds[engine].append(run(count, [*model, *options]))
    local, one, two = (statistics.median(seconds[engine]) for engine in ("local", "1 worker", "2 workers"))
    ranges = "; ".join(f"{engine} {min(s) * 1e3:.0f} to {max(s) * 1e3:.0f}" for engine, s in seconds.items())
    print(
        f"{network}: one worker {one / local:.2f} of the local engine's time, two workers {one / two:.2f} times as fast"
    )
    print(f"    milliseconds per image: {ranges}", flush=True)


def run(count: int, options: list[str]) -> float:
    """Seconds per image in a run over `count` photos."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "photos").mkdir()
        for i in range(count):
            (folder / f"photos/{i:05}.jpg").symlink_to(small(i))
        subprocess.run(
            [sys.executable, "-m", "ebcli", "-q", "photos", "-o", "maps", *options],
            cwd=folder,
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        times = sorted(path.stat().st_mtime for path in (folder / "maps/photos").iterdir())
        first, last = count // 5, count * 9 // 10
        return (times[last] - times[first]) / (last - first)


def small(i: int) -> Path:
    """A photo about the size of ImageNet's."""
    path = Path(tempfile.gettempdir(), f"benchmark-{PHOTOS[i % len(PHOTOS)].name}")
    if not path.exists():
        with Image.open(PHOTOS[i % len(PHOTOS)]) as photo:
            photo.thumbnail((500, 500))
            photo.save(path, quality=90)
    return path


if __name__ == "__main__":
    main()
