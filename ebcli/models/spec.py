"""Which network to load and how to feed it. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ebcli.errors import ConfigurationError
from ebcli.models.keywords import BUNDLED, DEFAULT, SCORES
from ebcli.models.preprocessing import Preprocessing


@dataclass(frozen=True)
class ModelSpec:
    """The arguments of ``load_model`` except the device, checked before torch is imported.

    Attributes:
        name, weights: see ``load_model``.
        class_names: file with one class name per output; None for the model's own names.
        preprocessing: settings that replace the model's own preprocessing.
        scores: how logits become scores; None for the model's own way.

    Raises:
        ConfigurationError: a value is empty or unknown, or the file does not exist.
    """

    name: str = BUNDLED
    weights: str = DEFAULT
    class_names: Path | None = None
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    scores: str | None = None

    def __post_init__(self) -> None:
        for what in ("name", "weights"):
            if not getattr(self, what):
                raise ConfigurationError(f"the model's {what} must not be empty")
        if self.scores is not None and self.scores not in SCORES:
            raise ConfigurationError(f"unknown scores {self.scores!r}: choose {', '.join(SCORES)}")
        if self.class_names is not None and not self.class_names.is_file():
            raise ConfigurationError(f"the file of class names '{self.class_names}' does not exist")
