"""One call from Python: the maps of one photo, with the command's defaults."""

from __future__ import annotations

import io
import os
import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ebcli.drawing.frames import FrameMaps
from ebcli.drawing.panel import panel
from ebcli.drawing.style import DrawingStyle
from ebcli.errors import ConfigurationError, ImageError
from ebcli.files.images import to_rgb
from ebcli.files.media.medium import Shown
from ebcli.files.sources import Source
from ebcli.models import LoadedModel
from ebcli.models.keywords import BUNDLED
from ebcli.nouns.explanation import Explanation
from ebcli.run.explainer import Explainer
from ebcli.run.network_description import in_a_sentence
from ebcli.run.plan import RunPlan
from ebcli.run.reading import NetworkInput, Reader


def explain(
    model: str | LoadedModel = BUNDLED,
    image: Image.Image | str | os.PathLike[str] | None = None,
    *targets: str | int | Sequence[str | int],
    layer: str | Sequence[str] = (),
    against: str | int | Sequence[str | int] = (),
    contrastive: bool = True,
    top_k: int | None = None,
    style: str = "overlay",
) -> Saliency:
    """Explain what a network sees in a photo, with the command's defaults: whole image, default layer, contrastive.

    Args:
        model: a name for `load_model`, which loads it at each call, or a `LoadedModel`. Either gets the whole image,
            unless it was loaded with a `Preprocessing` that says how images are fitted, resized or cropped.
        image: a Pillow image, or the path of a photo.
        targets: classes to explain, by name or index, also in a list; any texts for `clip/NAME`. None for the most
            likely class, or for all detections or segments.
        layer: the layer of the maps, or several; `"input"` for the pixels. None for the model's default layer.
        against: classes to contrast with. None for the class's own dual.
        contrastive: contrastive maps; marginal ones if False.
        top_k: the number of most likely classes, in place of targets.
        style: how maps are drawn; see `draw_map`.

    Raises:
        ConfigurationError: the model, a class, the layer or the style does not exist or does not fit.
        ImageError: the photo cannot be read.
        UnsupportedOpError: the network has operations without an excitation rule.

    Examples:
        >>> import ebcli
        >>> found = ebcli.explain("efficientnet_lite0", "sample_images/coffee.jpg", "espresso", "cup")
        >>> found.classes
        ['espresso', 'cup']
        >>> found.maps.shape[0], found.strength[0] > 0
        (2, True)
    """
    chosen, contrasted = (
        tuple(str(one) for some in classes for one in (some if isinstance(some, (list, tuple)) else (some,)))
        for classes in (targets, (against,))
    )
    values: dict[str, Any] = {"model": model}
    loaded = model if isinstance(model, LoadedModel) else None
    if loaded is not None:  # texts that are its classes are so already
        values = {"model": loaded.name, "class_names": loaded.categories, **vars(loaded.preprocessing)}
    layers = (layer,) if isinstance(layer, str) else tuple(layer)
    plan = RunPlan.of(
        **values,
        images=(Path("image"),),
        layer=layers,
        contrastive=contrastive,
        against=contrasted,
        target=chosen,
        top_k=top_k,
        style=style,
    )
    explainer = Explainer(plan, 1, loaded)
    network_input, shown = _read(image, explainer.loaded)
    (found,) = explainer.explain([network_input])
    if isinstance(found, ImageError):
        raise found
    if not found.maps:
        raise ImageError(f"{explainer.loaded.name} finds nothing to explain: name a class")
    network = explainer.network
    return Saliency(found, shown, plan.style, in_a_sentence(network.provenance_of_picture()))


def _read(image: Image.Image | str | os.PathLike[str] | None, loaded: LoadedModel) -> tuple[NetworkInput, Shown]:
    """What the network gets of a photo, and what its maps are drawn over."""
    spec = loaded.transforms
    if spec.axes != "HW":
        what = "videos" if spec.frames is not None else "volumes"
        raise ConfigurationError(f"{loaded.name} is for {what}, explain() for images: use the command")
    if isinstance(image, Image.Image):
        upright = to_rgb(image)
        return NetworkInput.of(upright, spec), Shown(upright)
    if not isinstance(image, (str, os.PathLike)) or os.path.isdir(image):
        one = "the path of a file, or a Pillow image"
        raise ConfigurationError(f"image is {reprlib.repr(image)}, but explain() takes one photo: {one}")
    reader, source = Reader(spec), Source(Path(image))
    try:
        network_input = reader.load(source)
    except ImageError as error:
        raise ImageError(f"'{image}': {error}") from error
    assert network_input is not None  # which only files in directories are
    (shown,) = reader.frames(source, network_input)
    return network_input, shown


@dataclass(frozen=True, repr=False, eq=False)
class Saliency:
    """The maps of a photo; notebooks show them as a picture.

    Attributes:
        explanation: the maps in full: subjects with scores and boxes, layers, masses, and their evidence in words.
        photo: what they are drawn over.
        style: how they are drawn.
        about: model, layer and method in words.

    Examples:
        >>> import ebcli
        >>> found = ebcli.explain("efficientnet_lite0", "sample_images/coffee.jpg")
        >>> found
        <Saliency of espresso, score 0.645; efficientnet_lite0 (IMAGENET1K_V1), layer features.11, contrastive EB>
        >>> found.picture.size
        (600, 400)
    """

    explanation: Explanation
    photo: Shown
    style: DrawingStyle
    about: str

    @property
    def maps(self) -> NDArray[np.float32]:
        """The maps (K, h, w), signed: one per class, and of several layers one per class and layer.

        Raises:
            ConfigurationError: the layers' maps differ in size; those of each layer are in ``explanation.by_layer``.
        """
        maps = [one.values for one in self.explanation.maps]
        if len({one.shape for one in maps}) > 1:
            raise ConfigurationError("the layers' maps differ in size: take them from explanation.by_layer")
        return np.stack(maps)

    @property
    def classes(self) -> list[str]:
        """The name of each map's class."""
        return [one.subject.name or f"class {one.subject.index}" for one in self.explanation.maps]

    @property
    def scores(self) -> list[float]:
        """The score of each map's class, detection or segment, 0 to 1."""
        return [one.subject.score for one in self.explanation.maps]

    @property
    def strength(self) -> list[float | None]:
        """How strong each map is, 0 to 1; None for marginal maps."""
        return [one.strength for one in self.explanation.maps]

    @cached_property
    def picture(self) -> Image.Image:
        """The photo under its map, or a panel of several maps."""
        size, found = self.photo.image.size, self.explanation
        subjects = found.subjects
        drawn = [FrameMaps.of(one, size, None, self.style, subjects.index(one.subject)) for one in found.maps]
        return drawn[0].drawn(self.photo) if len(drawn) == 1 else panel([self.photo], drawn, "", self.about).image()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the picture to a file of any format that Pillow writes."""
        self.picture.save(path)

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.picture.save(file, "PNG")
        return file.getvalue()

    def __repr__(self) -> str:
        found = ", ".join(dict.fromkeys(one.subject.title for one in self.explanation.maps))
        return f"<Saliency of {found}; {self.about}>"
