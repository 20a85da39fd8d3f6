"""Overhead of the command over its engine: on one photo, on a directory, and in memory.

    python -m benchmarks.command              # a few minutes
    python -m benchmarks.command --images 64  # fewer images in the directory

All with the bundled EfficientNet-Lite0. The engine is ``excitation_backprop`` on a prepared batch; the plain loop only
runs the same batches through the network. All with compiled bytecode, as in an installed package, whatever
``PYTHONDONTWRITEBYTECODE`` says: without it, Python compiles thousands of source files at each start.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
PHOTOS = [ROOT / f"sample_images/{name}.jpg" for name in ("chelsea", "coffee", "rocket")]
BATCH = 8  # the command's default on CPUs
GOAL, AIM = 0.80, 0.90  # of the engine's images per second, for a directory of small photos

ENGINE = f"""
import time, torch, ebcli
from PIL import Image
loaded = ebcli.load_model()
net = loaded.net.to(memory_format=torch.channels_last)
image = loaded.transforms(Image.open({str(PHOTOS[0])!r}).convert("RGB"))
batch = torch.stack([image] * {BATCH})
layer = ebcli.default_layer(loaded)
def work():
    WORK
work()
start = time.perf_counter()
for _ in range(ROUNDS):
    work()
print(ROUNDS * {BATCH} / (time.perf_counter() - start))
"""
EXPLAIN = "ebcli.excitation_backprop(net, batch, lambda y: y.argmax(1, True), layer, contrastive=True).maps"
FORWARD = "with torch.inference_mode(): net(batch)"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=240, help="images in the directory (240)")
    parser.add_argument("--rounds", type=int, default=5, help="runs on the single photo (5)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
        one_photo(folder, options.rounds)
        directory(folder, options.images)


def one_photo(folder: Path, rounds: int) -> None:
    """Time that the command takes on one photo beyond importing torch, and for what needs no torch."""
    photo, beyond = str(PHOTOS[0]), []
    timed([*eb_saliency(), photo, "-o", str(folder / "first")], folder)  # compiles
    for i in range(rounds):
        imports = timed([sys.executable, "-c", "import torch"], folder)
        command = timed([*eb_saliency(), photo, "-o", str(folder / f"one{i}")], folder)
        beyond.append((command[0] - imports[0], command[1] - imports[1]))
    print(f"one photo, beyond importing torch: {medians(beyond)} (goal 0.6 s)")
    (folder / "empty").mkdir()
    (folder / "file").touch()
    for what, arguments in {
        "missing file": ["missing.jpg"],
        "empty directory": ["empty"],
        "output below a file": [photo, "-o", "file/maps"],
        "unknown colormap": [photo, "--cmap", "jett"],
        "unknown class": [photo, "--target", "expresso"],
        "dry run": [photo, "--dry-run"],
        "nothing left": [photo, "-o", str(folder / "one0"), "--skip-existing"],
    }.items():
        found = [timed([*eb_saliency(), *arguments], folder, check=False) for _ in range(1 + rounds)][1:]
        print(f"{what}: {medians(found)} (goal 0.4 s, aim 0.2 s)")


def directory(folder: Path, count: int) -> None:
    """Images per second relative to the engine, without start-up, and peak memory relative to the plain loop."""
    photos = folder / "photos"
    photos.mkdir()
    for i in range(count):
        with Image.open(PHOTOS[i % len(PHOTOS)]) as photo:
            photo.save(photos / f"{i:04}.jpg", quality=90)
    few = folder / "few"
    few.mkdir()
    for path in sorted(photos.iterdir())[: 2 * BATCH]:
        (few / path.name).hardlink_to(path)
    engine = ENGINE.replace("WORK", EXPLAIN)
    plain = ENGINE.replace("WORK", FORWARD)
    rounds = str(max(4, count // BATCH))
    _, engine_rate, _ = measured([sys.executable, "-c", engine.replace("ROUNDS", rounds)], folder)
    for suffix in ("png", "jpg"):
        options = ["--format", suffix, "-o"]
        start, _, _ = measured([*eb_saliency(), str(few), *options, str(folder / f"few-{suffix}")], folder)
        whole, _, peak = measured(
            [*eb_saliency(), str(photos), *options, str(folder / f"maps-{suffix}")], folder
        )
        rate = (count - 2 * BATCH) / (whole - start)
        share = f"{rate / engine_rate:.2f} of the engine's {engine_rate:.1f}, goal {GOAL:.2f}, aim {AIM:.2f}"
        print(f"directory, {suffix}: {rate:.1f} images/s, {share}")
    _, _, plain_peak = measured([sys.executable, "-c", plain.replace("ROUNDS", rounds)], folder)
    print(
        f"peak memory of the main process: {peak:.0f} MiB, {peak / plain_peak:.2f} of the plain loop's {plain_peak:.0f}"
    )


def eb_saliency() -> list[str]:
    return [sys.executable, "-m", "ebcli", "-q"]


def medians(found: list[tuple[float, float]]) -> str:
    seconds, cpu = map(statistics.median, zip(*found, strict=True))
    return f"{seconds:.2f} s, {cpu:.2f} CPU-s"


def timed(command: list[str], cwd: Path, *, check: bool = True) -> tuple[float, float]:
    """Seconds on the clock and on the CPUs."""
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=cwd, check=check, capture_output=True)
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measured(command: list[str], cwd: Path) -> tuple[float, float, float]:
    """Seconds, the last number printed or 0, and the process's peak resident MiB."""
    start = time.perf_counter()
    with subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        printed = process.stdout.read().split()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command[:4])} exited with status {process.returncode}")
    try:
        number = float(printed[-1])
    except (IndexError, ValueError):
        number = 0.0
    return time.perf_counter() - start, number, usage.ru_maxrss / 1024


if __name__ == "__main__":
    main()
