"""Names of baselines. Imports no torch."""

BASELINES = ("blur", "mean", "noise")
