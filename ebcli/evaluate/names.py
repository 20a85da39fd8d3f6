"""What the options can be, for the command line to know without PyTorch."""

from __future__ import annotations

METHODS = ("contrastive", "marginal", "gradient", "gradient-x-input", "grad-cam", "random", "centre")
LAYERLESS = frozenset({"random", "centre"})  # these look at no layer
BASELINES = ("blur", "mean", "noise")
