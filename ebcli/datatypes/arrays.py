"""Short names of the types of arrays."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

AnyArray = NDArray[Any]
FloatArray = NDArray[np.float32]
DoubleArray = NDArray[np.float64]
