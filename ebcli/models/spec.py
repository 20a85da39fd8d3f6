"""Which network to load and how to feed it. Imports no torch."""

import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from ebcli.errors import ConfigurationError
from ebcli.models.keywords import BUNDLED, DEFAULT
from ebcli.models.preprocessing import Preprocessing


def as_classes(targets: Sequence[str], against: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Texts or pictures as classes: all of them, each once; and the indices of those to explain and to contrast with.

    Raises:
        ConfigurationError: one is to be both.
    """
    if both := {*targets} & {*against}:
        raise ConfigurationError(f"{min(both)!r} is explained, so it cannot be contrasted with: change --against")
    classes = list(dict.fromkeys((*targets, *against)))
    return tuple(classes), *(tuple(str(classes.index(one)) for one in chosen) for chosen in (targets, against))


@dataclass(frozen=True)
class ModelSpec:
    """The arguments of ``load_model`` except the device, checked before torch is imported.

    Attributes:
        name, weights: see ``load_model``.
        class_names: file with one class name per output, or texts to compare images with; None for the model's own
            names.
        preprocessing: settings that replace the model's own preprocessing.
        scores: how logits become scores; None for the model's own way.
        like: pictures to compare images with.

    Raises:
        ConfigurationError: the file does not exist.
    """

    name: str = BUNDLED
    _: KW_ONLY
    weights: str = DEFAULT
    class_names: Path | tuple[str, ...] | None = None
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    scores: str | None = None
    like: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.class_names, Path) and not os.path.isfile(self.class_names):
            raise ConfigurationError(f"the file of class names '{self.class_names}' does not exist")

    @property
    def described(self) -> tuple[str, ...]:
        """The texts or pictures that are the classes; empty if the model has classes of its own."""
        if self.like:
            return tuple(map(str, self.like))
        return self.class_names if isinstance(self.class_names, tuple) else ()
