"""CPU seconds that a directory of large photos costs per photo, beside the network's plain pass, with their goals.

    python -m benchmarks.photos               # 12-megapixel JPEG photos, some minutes
    python -m benchmarks.photos --megapixels 0.2
    python -m benchmarks.photos --csv         # also write docs/evidence/photos.csv
    python -m benchmarks.photos --check       # a few photos; fails if they take too long, three times in a row

CPU seconds of all processes, from two runs of different length, so that start-up drops out. Other load on the machine
hardly matters to them. The plain pass is the bundled EfficientNet-Lite0 on one image in a batch of 8, before and after
the runs.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image, ImageChops

ROOT = Path(__file__).resolve().parents[1]
BATCH = 8
GOAL = 0.35  # CPU seconds per photo of 12 megapixels
EXPECTED, SLACK = 13, 1.3  # plain passes per photo, and the share of them that --check allows
TRIES = 3  # of --check; a regression is there each time
ROWS = ((), ("--max-side", "1600"), ("--format", "png"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=32, help="photos in the larger directory (32)")
    parser.add_argument("--megapixels", type=float, default=12, help="size of a photo (12)")
    parser.add_argument("--csv", action="store_true", help="also write docs/evidence/photos.csv")
    parser.add_argument("--check", action="store_true", help="few photos, one row; fail on a regression")
    options = parser.parse_args()
    count = 2 * BATCH if options.check else options.images
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads that wait for each other count as busy
    plain_pass()  # imports
    measured = dict[str, float]()
    print("| work | CPU-s per photo | goal | plain passes |\n|---|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        small, large = directory(folder / "small", BATCH, options.megapixels), folder / "large"
        large.mkdir()
        for i in range(count):
            os.link(small / "0000.jpg", large / f"{i:04}.jpg")
        for row in ROWS[:1] * TRIES if options.check else ROWS:
            before = plain_pass()
            seconds = [cpu_seconds(photos, folder / "maps", *row) for photos in (small, large)]
            each, plain = (seconds[1] - seconds[0]) / (count - BATCH), (before + plain_pass()) / 2
            goal = f"{GOAL:.2f}" if options.megapixels == 12 and not row else ""
            measured |= {
                "the network's plain pass alone": plain,
                " ".join(["eb-saliency photos", *row]): each,
            }
            cells = [
                f"{options.megapixels:g} megapixels {' '.join(row)}",
                f"{each:.3f}",
                goal,
                f"{each / plain:.1f}",
            ]
            print(f"| {' | '.join(cells)} |", flush=True)
            if options.check and each <= SLACK * EXPECTED * plain:
                break
        else:
            if options.check:
                sys.exit(f"a photo takes {each / plain:.0f} plain passes instead of {EXPECTED}")
    if options.csv:
        from benchmarks import evidence

        work = {"network": "efficientnet_lite0", "megapixels": f"{options.megapixels:g}"}
        rows = [work | {"work": key, "CPU-s per photo": f"{value:.2f}"} for key, value in measured.items()]
        evidence.write("photos", [row | evidence.stamp() for row in rows])


def directory(folder: Path, count: int, megapixels: float) -> Path:
    """Photos with the noise of a camera: a smooth one would be too easy to encode."""
    folder.mkdir()
    height = round((megapixels * 1e6 * 3 / 4) ** 0.5)
    size = (round(height * 4 / 3), height)
    with Image.open(ROOT / "sample_images/chelsea.jpg") as photo:
        large = photo.convert("RGB").resize(size)
    noise = Image.merge("RGB", [Image.effect_noise(size, 8) for _ in range(3)])
    ImageChops.add(large, noise, offset=-128).save(folder / "0000.jpg", quality=92)
    for i in range(1, count):
        os.link(folder / "0000.jpg", folder / f"{i:04}.jpg")
    return folder


def cpu_seconds(photos: Path, maps: Path, *options: str) -> float:
    """The CPU seconds of a run and of its workers."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "ebcli", "-q", str(photos), "-o", str(maps), "--workers", "2", *options]
    subprocess.run(command, cwd=photos.parent, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def plain_pass() -> float:
    """The CPU seconds of the network on one image of a batch."""
    import torch

    import ebcli

    torch.set_num_threads(1)
    net = ebcli.load_model().net.to(memory_format=torch.channels_last)
    batch = torch.randn(BATCH, 3, 224, 224).contiguous(memory_format=torch.channels_last)
    with torch.inference_mode():
        net(batch)
        start = time.process_time()
        for _ in range(5):
            net(batch)
    return (time.process_time() - start) / 5 / BATCH


if __name__ == "__main__":
    main()
