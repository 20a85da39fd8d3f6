"""Short names of types that many files need."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

AnyArray = NDArray[Any]
FloatArray = NDArray[np.float32]
DoubleArray = NDArray[np.float64]
Size = tuple[int, int]  # width and height, in pixels
Interval = tuple[float, float]
JsonObject = dict[str, Any]
