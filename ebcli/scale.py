"""One scale for a whole run, known before its first picture is drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from ebcli.errors import EbcliError
from ebcli.images import Geometry, has_image_suffix
from ebcli.inputs import Source
from ebcli.look import Look
from ebcli.network import Network
from ebcli.tasks import look

SAMPLE = 64  # images; of many, one in 65 then goes beyond the greatest value found


def run_vmax(network: Network, sources: Sequence[Source], geometry: Geometry, style: Look) -> float:
    """Where a run's scale ends, 1 being an even spread: at the greatest value in a sample of its images' maps.

    The sample is spread evenly over the run's files, all shards of them. So it is the same for every shard, and again
    after a restart, and the scale with it: it is rounded up to two digits, for batches of another size or another
    device differ in rounding. Images that cannot be read do not count; without any, the scale ends at 1.

    Args:
        network: explains the images.
        sources: all files of the run.
        geometry: how the network sees them.
        style: whether maps are drawn signed.
    """
    images = [source for source in sources if source.named or has_image_suffix(source.path)]
    chosen = np.linspace(0, len(images) - 1, min(SAMPLE, len(images))).round().astype(int)
    greatest = 0.0
    for start in range(0, len(chosen), network.batch_size):
        pixels = []
        for i in chosen[start : start + network.batch_size]:
            with suppress(EbcliError):
                seen = look(images[i], geometry)
                pixels += [] if seen is None else [seen.pixels]
        for explained in network.explain(pixels) if pixels else ():
            for at in explained.layers:
                greatest = max(
                    greatest, *(_greatest(maps, style) for maps in (at.maps, at.marginal) if maps is not None)
                )
    return _rounded_up(greatest) if greatest else 1.0


def _greatest(maps: NDArray[np.float32], style: Look) -> float:
    """In even spreads, of maps (K, h, w); what is not finite does not count."""
    shown = style.shown(np.nan_to_num(maps, nan=0, posinf=0, neginf=0))
    return float(shown.max()) * maps[0].size


def _rounded_up(value: float) -> float:
    """To two significant digits: 0.3333 -> 0.34."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / unit) * unit:.2g}")
