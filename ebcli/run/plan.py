"""What one run is asked to do, checked before any work starts. Imports neither torch nor Click."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from pathlib import Path

from ebcli.errors import ConfigurationError

FORMATS = ("png", "jpg", "webp")
DTYPES = ("float32", "bfloat16")
STYLES = ("overlay", "heatmap", "side-by-side", "mask", "contour", "paper")
SCALES = ("image", "run")
ENGINES = ("local", "ray")


@dataclass(frozen=True)
class RunPlan:
    """A whole run: which images, which network, which maps, drawn how and written where.

    Attributes:
        images: files and directories, as the user named them.
        include, exclude: patterns of files to take alone, and of files to leave out; see ``ebcli.files.sources.find``.
        shard: (i, n) for the i-th, from 1, of n parts that the images are dealt out to; None for all.
        model, weights: as for ``ebcli.load_model``.
        classes: a file of class names, one for each output of the network; None for those the model comes with.
        resize, crop, mean, std: as for ``ebcli.Preprocessing``; None for what the model comes with.
        layers: ``named_modules()`` names; ``"input"`` for the pixels, ``"all"`` for one layer of each resolution and
            the pixels; empty for the model's own default.
        contrastive: contrastive maps if True, plain marginal ones if not.
        with_marginal: in panels, also show the marginal map beside each contrastive one.
        targets: classes by index or by name; empty for the ``top_k`` most likely ones of each image.
        top_k: how many classes each image gets where ``targets`` is empty, at least 1.
        output: the directory that all files are written below.
        format: the pictures' format, one of ``FORMATS``.
        raw: also write each image's relevance and what belongs to it as a ``.npz`` file.
        panel: one figure an image, of all its maps, in place of a picture a map.
        report: also write a page of all results in the output directory.
        style: how a map is laid on its photo, one of ``STYLES``.
        cmap: a matplotlib colormap's name; None for the style's own.
        alpha: how opaque an overlay is at the scale's upper end, 0 to 1.
        signed: also draw what is below 0, on a scale symmetric about 0.
        scale: ``"image"``, each map to its own maximum, or ``"run"``, one scale for all.
        vmin, vmax: the scale's ends, 1 being an even spread of all probability over the map's cells; None for 0 and
            for what ``scale`` says.
        percentile: of a map's values above 0, the one that its own scale ends at; 100 for the maximum.
        skip_existing: leave out images whose results are there, computed with equal settings.
        overwrite: replace files that this program did not write, too.
        dry_run: only say which images would be worked on.
        fail_fast: stop at the first image that fails.
        batch_size: how many images the network gets at a time, or None for the device's default.
        workers: how many processes decode and draw, 0 for none; None for one a processor.
        allow_unsupported: use ordinary gradients, with a warning, where an operation has no excitation rule.
        explain_losses: also find out which parts of the network have swallowed how much probability.
        device: ``"auto"`` or any name torch knows, such as ``"cpu"`` or ``"cuda:1"``.
        engine: ``"local"``, this machine, or ``"ray"``, a Ray cluster.
        ray_address: the cluster's, such as ``"auto"`` or ``"host:6379"``; None to start Ray on this machine.
        num_workers: how many copies of the network Ray runs; None for as many as the cluster has room for.
        gpus_per_worker: how much of a GPU each of them gets; None for one where there are any.
        dtype: what the network computes in, one of ``DTYPES``.

    Raises:
        ConfigurationError: a value is out of its range, or there is no image.
    """

    images: tuple[Path, ...]
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    shard: tuple[int, int] | None = None
    model: str = "efficientnet_lite0"
    weights: str = "DEFAULT"
    classes: Path | None = None
    resize: int | None = None
    crop: int | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    layers: tuple[str, ...] = ()
    contrastive: bool = True
    with_marginal: bool = False
    targets: tuple[str, ...] = ()
    top_k: int = 1
    output: Path = Path("saliency")
    format: str = "png"
    raw: bool = False
    panel: bool = False
    report: bool = False
    style: str = "overlay"
    cmap: str | None = None
    alpha: float = 0.85
    signed: bool = False
    scale: str = "image"
    vmin: float | None = None
    vmax: float | None = None
    percentile: float = 100.0
    skip_existing: bool = False
    overwrite: bool = False
    dry_run: bool = False
    fail_fast: bool = False
    batch_size: int | None = None
    workers: int | None = None
    allow_unsupported: bool = False
    explain_losses: bool = False
    device: str = "auto"
    dtype: str = "float32"
    engine: str = "local"
    ray_address: str | None = None
    num_workers: int | None = None
    gpus_per_worker: float | None = None

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
        if self.dtype not in DTYPES:
            raise ConfigurationError(f"there is no dtype {self.dtype!r}: choose {' or '.join(DTYPES)}")
        if not 0 <= self.alpha <= 1:  # also refuses NaN
            raise ConfigurationError(f"alpha is {self.alpha:g}, but it must lie between 0 and 1")
        self._check_look()
        if self.with_marginal and not (self.panel and self.contrastive):
            raise ConfigurationError("with-marginal shows the marginal map beside the contrastive one in a panel")
        if self.batch_size is not None and self.batch_size < 1:
            raise ConfigurationError(f"the batch size is {self.batch_size}, but it must be at least 1")
        if self.workers is not None and self.workers < 0:
            raise ConfigurationError(f"workers is {self.workers}, but it cannot be less than 0")
        self._check_engine()

    def _check_look(self) -> None:
        if self.style not in STYLES:
            raise ConfigurationError(f"there is no style {self.style!r}: choose {', '.join(STYLES)}")
        if self.scale not in SCALES:
            raise ConfigurationError(f"there is no scale {self.scale!r}: choose {' or '.join(SCALES)}")
        if self.signed and not self.contrastive:
            raise ConfigurationError("a marginal map has nothing below 0: leave out signed, or choose contrastive maps")
        if self.signed and self.style in ("mask", "paper"):
            raise ConfigurationError(f"the style {self.style} cannot show what is below 0: leave out signed")
        if self.style == "mask" and self.format == "jpg" and not self.panel:
            raise ConfigurationError(
                "the style mask needs transparency, which jpg lacks: choose the format png or webp"
            )
        if not 0 < self.percentile <= 100:
            raise ConfigurationError(f"the percentile is {self.percentile:g}, but it must lie above 0 and up to 100")
        if self.vmin is not None and not 0 <= self.vmin < inf:
            raise ConfigurationError(f"vmin is {self.vmin:g}, but it must be at least 0")
        if self.vmin is not None and self.signed:
            raise ConfigurationError("a signed scale is symmetric about 0: give vmax alone")
        if self.vmax is not None and not (self.vmin or 0) < self.vmax < inf:
            raise ConfigurationError(f"vmax is {self.vmax:g}, but it must be greater than vmin, {self.vmin or 0:g}")
        if self.vmax is not None and self.scale == "run":
            raise ConfigurationError("the scale of a run ends at vmax if it is given: leave out one of them")
        if self.percentile != 100 and (self.vmax is not None or self.scale == "run"):
            raise ConfigurationError("a percentile is of each image's own scale: leave out vmax and the run's scale")

    def _check_engine(self) -> None:
        if self.engine not in ENGINES:
            raise ConfigurationError(f"there is no engine {self.engine!r}: choose {' or '.join(ENGINES)}")
        if self.num_workers is not None and self.num_workers < 1:
            raise ConfigurationError(f"num-workers is {self.num_workers}, but it must be at least 1")
        if self.gpus_per_worker is not None and not 0 <= self.gpus_per_worker < inf:
            raise ConfigurationError(f"gpus-per-worker is {self.gpus_per_worker:g}, but it cannot be less than 0")
        if self.engine == "ray" and self.workers is not None:
            raise ConfigurationError("Ray decodes and draws on all processors of the cluster: leave out workers")
        if self.engine == "ray" and self.device not in ("auto", "cpu", "cuda"):
            raise ConfigurationError(f"Ray deals out GPUs: in place of the device {self.device!r}, give cuda or cpu")
