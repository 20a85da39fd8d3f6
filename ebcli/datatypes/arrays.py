"""Short names of the types of arrays, and of their shapes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Shape = tuple[int, ...]
AnyArray = NDArray[Any]
FloatArray = NDArray[np.float32]
DoubleArray = NDArray[np.float64]
