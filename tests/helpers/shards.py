"""Tar files as training reads them."""

from pathlib import Path

import numpy as np
import webdataset


def shard(path: Path, count: int) -> None:
    """A tar file of samples as training reads them: images, and what is known about them."""
    generator = np.random.default_rng(1)
    path.parent.mkdir(parents=True, exist_ok=True)
    with webdataset.TarWriter(str(path)) as writer:
        for number in range(count):
            pixels = generator.integers(0, 256, (40, 48, 3), dtype=np.uint8)
            writer.write({"__key__": f"{number:04}", "png": pixels, "cls": number, "json": {"of": path.name}})
