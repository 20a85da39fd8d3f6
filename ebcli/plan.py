"""What one run is asked to do, checked before any work starts. Imports neither torch nor Click."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ebcli.errors import ConfigurationError


@dataclass(frozen=True)
class RunPlan:
    """A whole run: which images, which network, which maps, drawn how and written where.

    Attributes:
        images: files and directories, as the user named them.
        model: a name from ``ebcli.model_names()``.
        weights: ``"DEFAULT"``, the name of one of the model's weights, a checkpoint file, or ``"none"``.
        layer: a ``named_modules()`` name, or None for the model's own default.
        contrastive: contrastive maps if True, plain marginal ones if not.
        targets: classes by index or by name; empty for the ``top_k`` most likely ones of each image.
        top_k: how many classes each image gets where ``targets`` is empty, at least 1.
        output: the directory that all files are written below.
        cmap: a matplotlib colormap's name.
        alpha: how opaque the map is at its maximum, 0 to 1.
        device: ``"auto"`` or any name torch knows, such as ``"cpu"`` or ``"cuda:1"``.

    Raises:
        ConfigurationError: a value is out of its range, or there is no image.
    """

    images: tuple[Path, ...]
    model: str = "efficientnet_lite0"
    weights: str = "DEFAULT"
    layer: str | None = None
    contrastive: bool = True
    targets: tuple[str, ...] = ()
    top_k: int = 1
    output: Path = Path("saliency")
    cmap: str = "inferno"
    alpha: float = 0.85
    device: str = "auto"

    def __post_init__(self) -> None:
        if not self.images:
            raise ConfigurationError("there is no image to work on: name at least one file or directory")
        if self.top_k < 1:
            raise ConfigurationError(f"top-k is {self.top_k}, but it must be at least 1")
        if not 0 <= self.alpha <= 1:  # also refuses NaN
            raise ConfigurationError(f"alpha is {self.alpha:g}, but it must lie between 0 and 1")
