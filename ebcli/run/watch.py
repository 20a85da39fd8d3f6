"""Watching the maps of some images while a network learns."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ebcli.datatypes.arrays import FloatArray
from ebcli.drawing.figure import Row, lay_out, map_tile, small_frame
from ebcli.drawing.frame_maps import FrameMaps
from ebcli.drawing.legend import scale_labels
from ebcli.errors import DISTRIBUTION, ConfigurationError, import_optional
from ebcli.files.sink import atomic_write, check_file
from ebcli.pages.shell import page
from ebcli.run.saliency import Saliency

_LEAST = 1e-12  # of a map's sum, so that blank maps do not divide by 0
Curves = dict[str, float]


class Watch:
    """Log the maps of some images each epoch, with three curves about them.

    The curves are means over the images: ``strength``, ``agreement``, the correlation of each map with that of the call
    before, from -1 to 1, which rises as the network converges, and ``inside``, the share of each map in a given box.

    Args:
        photos: the images, a list or a batch; see `explain`.
        to: a folder, which gets pictures and a page; a writer of TensorBoard (``add_image``, ``add_scalar``); or a run
            of Weights & Biases (``log``). None for the logger of Lightning's trainer.
        every: log every so many calls, from the first one.
        boxes: for each image, left, top, right and bottom of what the network should look at, in pixels; None for no
            curve ``inside``.
        options: those of `explain`, such as ``target``, ``layer`` and ``transform``.

    Raises:
        ConfigurationError: there is not a box for each image, or the folder has another program's page.

    Examples:
        >>> import ebcli, torch
        >>> net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(),
        ...                           torch.nn.Linear(4 * 30 * 30, 2))
        >>> import tempfile
        >>> watch = ebcli.Watch(torch.rand(2, 3, 32, 32), tempfile.mkdtemp(), target=0, layer="1")
        >>> for epoch in range(2):  # and train in between
        ...     curves = watch(net)
        >>> round(curves["agreement"], 3)
        1.0
    """

    def __init__(
        self,
        photos: Any,
        to: Any = None,
        *,
        every: int = 1,
        boxes: Sequence[Sequence[float]] | None = None,
        **options: Any,
    ) -> None:
        if boxes is not None and len(boxes) != len(photos):
            raise ConfigurationError(
                f"there are {len(boxes)} boxes for {len(photos)} images: give one for each"
            )
        self._photos = photos
        self._every = every
        self._boxes = boxes
        self._options = options
        if isinstance(to, (str, os.PathLike)):
            to = Path(to)
        self._to = to
        self._before: list[FloatArray] = []
        self._calls = 0
        self._rows: list[dict[str, Any]] = []
        if isinstance(self._to, Path):
            index = self._to / "index.html"
            check_file(index, False, lambda: f'content="{DISTRIBUTION}"'.encode() in index.read_bytes(), "to")

    def __call__(self, net: Any, epoch: int | None = None, to: Any = None) -> Curves | None:
        """Explain the images and log the result.

        Args:
            net: the network, as `explain` takes it; it keeps its mode.
            epoch: the number to log by; None to count the calls, from 0.
            to: see the class; None for what it was made with.

        Returns:
            The curves' values; None if nothing is logged this time.
        """
        calls = self._calls
        self._calls += 1
        if calls % self._every:
            return None
        from ebcli.run.explain import explain  # not before something is explained

        saliencies: list[Saliency] = explain(net, self._photos, **self._options)
        maps = [np.maximum(saliency.heatmap()[0], 0) for saliency in saliencies]
        values = {"strength": [saliency.strength[0] or 0.0 for saliency in saliencies]}
        if self._before:
            values["agreement"] = [*map(_correlation, maps, self._before)]
        if self._boxes is not None:
            values["inside"] = [*map(_inside, maps, self._boxes)]
        curves = {name: float(np.mean(numbers)) for name, numbers in values.items()}
        self._before = maps
        if epoch is None:
            epoch = calls
        if to is None:
            to = self._to
        self._log(to, epoch, curves, _draw_maps(saliencies, epoch))
        return curves

    def callback(self) -> Any:
        """A callback of Lightning, which watches the module at the end of each epoch of training."""
        watch = self

        class WatchCallback(import_optional("lightning.pytorch", "lightning").Callback):  # type: ignore[misc]
            def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
                if trainer.is_global_zero:
                    to = trainer.logger.experiment if watch._to is None else None
                    watch(pl_module, trainer.current_epoch, to)

        return WatchCallback()

    def _log(self, to: Any, epoch: int, curves: Curves, picture: Image.Image) -> None:
        if hasattr(to, "add_scalar"):
            to.add_image("saliency/maps", np.asarray(picture), epoch, dataformats="HWC")
            for name, value in curves.items():
                to.add_scalar(f"saliency/{name}", value, epoch)
        elif hasattr(to, "log"):
            values = {f"saliency/{name}": value for name, value in curves.items()}
            to.log(values | {"saliency/maps": import_optional("wandb").Image(picture)}, step=epoch)
        elif isinstance(to, Path):
            name = f"epoch-{epoch:04d}.png"
            self._rows.append({"epoch": epoch, "picture": name, **curves})
            with atomic_write(to / name) as temporary:
                picture.save(temporary, "PNG")
            with atomic_write(to / "index.html") as temporary:
                temporary.write_bytes(page("watch.html", rows=self._rows, curves=[*curves]))
        else:
            raise ConfigurationError(
                f"cannot log to {to!r}: give a folder, or a writer of TensorBoard or wandb"
            )


def _correlation(first: FloatArray, other: FloatArray) -> float:
    """Pearson's; 0 if a map is flat."""
    if not (np.ptp(first) and np.ptp(other)):
        return 0.0
    return float(np.corrcoef(first.ravel(), other.ravel())[0, 1])


def _inside(values: FloatArray, box: Sequence[float]) -> float:
    left, top, right, bottom = (round(edge) for edge in box)
    return float(values[top:bottom, left:right].sum() / max(_LEAST, float(values.sum())))


def _draw_maps(saliencies: Sequence[Saliency], epoch: int) -> Image.Image:
    """The first map of each image."""
    style = saliencies[0].style
    tiles = []
    cells = 0
    for number, saliency in enumerate(saliencies, 1):
        map_ = saliency.explanation.maps[0]
        photo = saliency.photo
        assert photo is not None  # of networks of one input
        frame_maps = FrameMaps.from_map(map_, photo.image.size, None, style)
        frame = photo._replace(image=small_frame(photo.image, saliency.style))
        tiles.append(map_tile(frame_maps, frame, f"{number}: {map_.title}"))
        cells = max(cells, map_.values.size)
    rows = [Row("", tiles)]
    return lay_out(f"epoch {epoch}", saliencies[0].about, rows, style, scale_labels(style, cells)).image()
