"""Values that options accept in place of a name: of weights, layers, fits and scores."""

from __future__ import annotations

BUNDLED = "efficientnet_lite0"
DEFAULT, UNTRAINED = "DEFAULT", "none"  # weights of any model
ALL, INPUT = "all", "input"  # accepted in place of a layer name
FITS = CROP, SQUASH, PAD = "crop", "squash", "pad"  # how images are fitted into the network's square input
SCORES = SOFTMAX, SIGMOID, RAW = "softmax", "sigmoid", "raw"  # how logits become scores
