"""What one run is asked to do, checked before any work starts. Imports neither torch nor Click."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ebcli.errors import ConfigurationError

FORMATS = ("png", "jpg", "webp")


@dataclass(frozen=True)
class RunPlan:
    """A whole run: which images, which network, which maps, drawn how and written where.

    Attributes:
        images: files and directories, as the user named them.
        include, exclude: patterns of files to take alone, and of files to leave out; see ``ebcli.inputs.find``.
        shard: (i, n) for the i-th, from 1, of n parts that the images are dealt out to; None for all.
        model: a name from ``ebcli.model_names()``.
        weights: ``"DEFAULT"``, the name of one of the model's weights, a checkpoint file, or ``"none"``.
        layer: a ``named_modules()`` name, or None for the model's own default.
        contrastive: contrastive maps if True, plain marginal ones if not.
        targets: classes by index or by name; empty for the ``top_k`` most likely ones of each image.
        top_k: how many classes each image gets where ``targets`` is empty, at least 1.
        output: the directory that all files are written below.
        format: the pictures' format, one of ``FORMATS``.
        raw: also write each image's relevance and what belongs to it as a ``.npz`` file.
        cmap: a matplotlib colormap's name.
        alpha: how opaque the map is at its maximum, 0 to 1.
        skip_existing: leave out images whose results are there, computed with equal settings.
        overwrite: replace files that this program did not write, too.
        dry_run: only say which images would be worked on.
        fail_fast: stop at the first image that fails.
        batch_size: how many images the network gets at a time, or None for the device's default.
        workers: how many processes decode and draw, 0 for none; None for one a processor.
        allow_unsupported: use ordinary gradients, with a warning, where an operation has no excitation rule.
        explain_losses: also find out which parts of the network have swallowed how much probability.
        device: ``"auto"`` or any name torch knows, such as ``"cpu"`` or ``"cuda:1"``.

    Raises:
        ConfigurationError: a value is out of its range, or there is no image.
    """

    images: tuple[Path, ...]
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    shard: tuple[int, int] | None = None
    model: str = "efficientnet_lite0"
    weights: str = "DEFAULT"
    layer: str | None = None
    contrastive: bool = True
    targets: tuple[str, ...] = ()
    top_k: int = 1
    output: Path = Path("saliency")
    format: str = "png"
    raw: bool = False
    cmap: str = "inferno"
    alpha: float = 0.85
    skip_existing: bool = False
    overwrite: bool = False
    dry_run: bool = False
    fail_fast: bool = False
    batch_size: int | None = None
    workers: int | None = None
    allow_unsupported: bool = False
    explain_losses: bool = False
    device: str = "auto"

    def __post_init__(self) -> None:
        if not self.images:
            raise ConfigurationError("there is no image to work on: name at least one file or directory")
        if not all((*self.include, *self.exclude)):
            raise ConfigurationError("a pattern is empty: leave it out, or name files as in '*.jpg'")
        if self.shard is not None and not 1 <= self.shard[0] <= self.shard[1]:
            i, n = self.shard
            raise ConfigurationError(f"there is no shard {i}/{n}: they are counted from 1/{n} to {n}/{n}")
        if self.top_k < 1:
            raise ConfigurationError(f"top-k is {self.top_k}, but it must be at least 1")
        if self.format not in FORMATS:
            raise ConfigurationError(f"there is no format {self.format!r}: choose {', '.join(FORMATS)}")
        if not 0 <= self.alpha <= 1:  # also refuses NaN
            raise ConfigurationError(f"alpha is {self.alpha:g}, but it must lie between 0 and 1")
        if self.batch_size is not None and self.batch_size < 1:
            raise ConfigurationError(f"the batch size is {self.batch_size}, but it must be at least 1")
        if self.workers is not None and self.workers < 0:
            raise ConfigurationError(f"workers is {self.workers}, but it cannot be less than 0")
