"""Names of methods and baselines. Imports no torch."""

from __future__ import annotations

METHODS = ("contrastive", "marginal", "gradient", "gradient-x-input", "grad-cam", "random", "center")
LAYERLESS = frozenset({"random", "center"})  # methods that use no layer
BASELINES = ("blur", "mean", "noise")
