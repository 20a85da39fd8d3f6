"""Photos per hour of the command, and the table of docs/many-photos.md.

    python -m benchmarks.rates          # some minutes; nothing else should run
    python -m benchmarks.rates --csv    # also write docs/evidence/rates.csv and the table

By the clock, as the difference of a longer and a shorter run, so that the start does not count. The command has its
defaults and writes JPEG. VGG-16 has random weights, which cost the same.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.photos import BATCH, directory

# network, megapixels of its photos, and how many more of them the longer run has
WORKS = (("efficientnet_lite0", 0.2, 400), ("vgg16", 0.2, 64), ("efficientnet_lite0", 12, 48))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--csv", action="store_true", help="also write docs/evidence/rates.csv")
    options = parser.parse_args()
    rows = []
    for network, megapixels, more in WORKS:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            few, many = (directory(folder / f"{n}", n, megapixels) for n in (BATCH, BATCH + more))
            weights = () if network == "efficientnet_lite0" else ("--weights", "none")
            times = [seconds(photos, "--model", network, *weights) for photos in (few, many)]
        rate = round(3600 * more / (times[1] - times[0]), -3)
        print(f"{network}, {megapixels:g} megapixels: {rate:.0f} photos per hour", flush=True)
        row = {"network": network, "megapixels": f"{megapixels:g}", "CPUs": os.cpu_count()}
        rows.append(row | {"photos per hour": f"{rate:,.0f}"})
    if options.csv:
        from benchmarks import evidence

        evidence.write("rates", [row | evidence.stamp() for row in rows])


def seconds(photos: Path, *options: str) -> float:
    """How long a run takes."""
    command = [sys.executable, "-m", "ebcli", "-q", str(photos), "-o", f"{photos}-maps", *options]
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
