"""Names of baselines. Imports no torch."""

from __future__ import annotations

BASELINES = ("blur", "mean", "noise")
