"""Which network to load, as plain data. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ebcli.models.names import BUNDLED
from ebcli.models.preprocessing import Preprocessing


@dataclass(frozen=True)
class ModelSpec:
    """The arguments of ``load_model`` but for the device.

    Attributes:
        name, weights: as for ``load_model``.
        class_names: a file of class names; None for those that the model comes with.
        preprocessing: what replaces the model's own preprocessing.
    """

    name: str = BUNDLED
    weights: str = "DEFAULT"
    class_names: Path | None = None
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
