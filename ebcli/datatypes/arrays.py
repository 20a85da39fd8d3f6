"""The types of arrays, and of numbers that belong together."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

AnyArray = NDArray[Any]
FloatArray = NDArray[np.float32]
Size = tuple[int, int]  # width and height, in pixels
Interval = tuple[float, float]
