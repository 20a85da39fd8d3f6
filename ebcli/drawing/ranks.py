"""The order in which a map ranks the pixels of an image."""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def ranks(saliency: ArrayLike, generator: np.random.Generator | None = None) -> NDArray[np.int64]:
    """The rank of each value of a map (H, W), 0 for the highest.

    Args:
        saliency: signed or not; a map with NaN or infinity counts as constant.
        generator: orders equal values; None for a fixed order.
    """
    values = np.asarray(saliency, dtype=np.float64)
    if not np.isfinite(values).all():
        values = np.zeros_like(values)
    ties = (generator or np.random.default_rng(0)).permutation(values.size)
    found = np.empty(values.size, dtype=np.int64)
    found[np.lexsort((ties, -values.ravel()))] = np.arange(values.size)
    return found.reshape(values.shape)
