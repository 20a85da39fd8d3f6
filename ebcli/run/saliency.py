"""What `explain` finds in an image."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ebcli.datatypes.arrays import AnyArray, FloatArray
from ebcli.datatypes.atlas import Atlas
from ebcli.datatypes.explanation import Box, Explanation, Map, Size
from ebcli.drawing.atlas import atlas_figure
from ebcli.drawing.figure import panel
from ebcli.drawing.frame_maps import FrameMaps
from ebcli.drawing.overlay import heatmap
from ebcli.drawing.pages import notebook_view
from ebcli.drawing.regions import RegionOptions, largest_region
from ebcli.drawing.style import ATLAS, AnyStyle, DrawingStyle
from ebcli.errors import ConfigurationError, import_optional
from ebcli.files.media.medium import DisplayFrame
from ebcli.run.plan import RunPlan
from ebcli.run.plan_parts import OutputOptions
from ebcli.run.rendering import frame_maps_of


@dataclass(frozen=True, repr=False, eq=False)
class Saliency:
    """The maps of an image; notebooks show them with the value under the pointer.

    Attributes:
        explanation: the maps in full: subjects with scores and boxes, layers, masses, and their evidence in words.
        photo: what they are drawn over; None if they are maps of an input that is no picture, such as a table.
        plan: what was asked, with the drawing style.
        about: model, layer and method in words.

    Examples:
        >>> import ebcli
        >>> found = ebcli.explain("efficientnet_lite0", "sample_images/coffee.jpg")
        >>> found
        <Saliency of espresso, score 0.645; efficientnet_lite0 (IMAGENET1K_V1), layer features.11, contrastive EB>
        >>> found.picture.size, found.heatmap().shape, found.heatmap((300, 200)).shape
        ((600, 400), (1, 400, 600), (1, 200, 300))
    """

    explanation: Explanation
    photo: DisplayFrame | None
    plan: RunPlan
    about: str

    @property
    def style(self) -> DrawingStyle:
        """How the maps are drawn."""
        return self.plan.style

    @property
    def _maps(self) -> Sequence[Map]:
        return self.explanation.maps

    @property
    def _frame(self) -> DisplayFrame:
        """The photo. Raises ConfigurationError if there is none."""
        if self.photo is None:
            raise self._without_picture()
        return self.photo

    def _without_picture(self) -> ConfigurationError:
        problem = f"the map at {self._maps[0].layer!r} is of no picture"
        return ConfigurationError(f"{problem}: take its values from maps, or those of a table from columns")

    @property
    def maps(self) -> Any:
        """The maps (K, h, w), signed: one per class, and of several methods one per class and method.

        Of several layers, it is a dictionary of their names with the maps of each: the layers' cells differ in size.
        `heatmap` has all maps at one size. The map of an input that is no picture has the input's own shape:
        (K, columns) of a table.
        """
        layers = {
            layer: np.stack([map_.values for map_ in maps])
            for layer, maps in self.explanation.by_layer.items()
        }
        return layers if len(layers) > 1 else layers[self._maps[0].layer]

    def heatmap(self, size: Size | None = None) -> FloatArray:
        """The maps as they are drawn, (K, height, width), aligned with the photo; 0 where the network did not look.

        Values are those of the map's cells, interpolated; negative ones are 0 unless they are drawn (``signed``).

        Args:
            size: (width, height); None for the photo's own.
        """
        photo_size = self._frame.image.size
        size = size or photo_size
        heatmaps = []
        for map_ in self._maps:
            region = map_.placement.rescale(photo_size, size)
            heatmaps.append(heatmap(map_.display_values, region, size, self.style.signed))
        return np.stack(heatmaps)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> AnyArray:
        return self.heatmap().astype(dtype or np.float32, copy=False)

    def boxes(self, threshold: str | float = 0.5) -> list[Box | None]:
        """The box around the largest region above a threshold, in pixels; None if a map is blank.

        Args:
            threshold: a share of each map's maximum, between 0 and 1; or ``"mass:0.8"`` for the smallest region with
                that share of its positive values.

        Raises:
            ConfigurationError: it is no threshold.
        """
        options = RegionOptions(*OutputOptions.of_threshold(threshold), masks=False)
        size = self._frame.image.size
        boxes = []
        for map_ in self._maps:
            region = largest_region(map_.display_values, map_.placement, size, options)
            boxes.append(getattr(region, "box", None))
        return boxes

    @cached_property
    def _atlas(self) -> Atlas:
        if self.photo is None:
            raise self._without_picture()
        return Atlas.from_maps(self._maps)

    def at(self, x: float, y: float) -> list[tuple[str, float]]:
        """The classes with evidence at a pixel of the photo, each with its share of it, 0 to 1, best first.

        Empty where no class has clear evidence. Only the classes of the maps are compared, so explain many:
        ``candidates="windows"``.

        Args:
            x: the column, from 0.
            y: the row, from 0.

        Raises:
            ConfigurationError: the maps are not contrastive maps of classes at one layer.
        """
        return [(subject.label, share) for subject, share in self._atlas.classes_at(x, y)]

    def regions(self) -> tuple[NDArray[np.str_], FloatArray]:
        """The class with the most evidence at each cell, and this evidence.

        Returns:
            The names (h, w), empty where no class has clear evidence; and the evidence (h, w), of which 1 is the
            largest in the photo.

        Raises:
            ConfigurationError: as for `at`.
        """
        evidence = self._atlas.evidence
        return np.array([*self.classes, ""])[self._atlas.winners(evidence)], evidence.max(0)

    def detections(self, threshold: str | float = 0.5) -> Any:
        """The maps that are not blank as `Detections` of supervision: detections' own boxes, else those of `boxes`.

        Their ``data`` has ``class_name`` and ``strength``.
        """
        boxes = {}
        for map_, region_box in zip(self._maps, self.boxes(threshold), strict=True):
            box = map_.subject.box or region_box
            if box:
                boxes[map_] = box
        subjects = [map_.subject for map_ in boxes]
        names = [subject.name for subject in subjects]
        return import_optional("supervision").Detections(
            xyxy=np.array([*boxes.values()], np.float32).reshape(-1, 4),
            confidence=np.array([subject.score for subject in subjects], np.float32),
            class_id=np.array([subject.index for subject in subjects], int),
            data={"class_name": names, "strength": [map_.strength for map_ in boxes]},
        )

    @property
    def classes(self) -> list[str]:
        """The name of each map's class."""
        return [map_.subject.label for map_ in self._maps]

    @property
    def scores(self) -> list[float]:
        """The score of each map's class, detection or segment, 0 to 1; or its value, which can be any number."""
        return [map_.subject.score for map_ in self._maps]

    @property
    def mass(self) -> list[float | None]:
        """The sum of each marginal map, 0 to 1; None where it was not computed."""
        return [map_.mass for map_ in self._maps]

    @property
    def channels(self) -> list[tuple[float, ...]]:
        """Each channel's share of each map, for maps at the input of a network with more than three channels."""
        return [map_.channels for map_ in self._maps]

    @property
    def inputs(self) -> list[Mapping[str, float]]:
        """Of a network with several inputs, the share of the evidence that each of them has, by name, for each map.

        It is the marginal mass that reaches the input, step by step. The shares sum to at most 1: the rest is lost at
        neurons activated only by their bias. Inputs of whole numbers have none.
        """
        return [map_.inputs for map_ in self._maps]

    @property
    def columns(self) -> list[Mapping[str, Mapping[str, float]]]:
        """The evidence of each column of the tables among several inputs, by name, the largest first, for each map.

        It is what the column adds to a map of this method, step by step. If the map is contrastive, columns that speak
        against the class are negative.
        """
        return [map_.columns for map_ in self._maps]

    @property
    def strength(self) -> list[float | None]:
        """How strong each map is, 0 to 1; None for marginal maps."""
        return [map_.strength for map_ in self._maps]

    @property
    def evidence(self) -> list[str | None]:
        """How much each map rests on: ``clear``, ``weak`` or ``hardly any``; None if that is unknown."""
        return [map_.evidence for map_ in self._maps]

    @cached_property
    def picture(self) -> Image.Image:
        """The photo under its map, or a panel of several maps."""
        return self._draw(self.style)

    def draw(
        self, style: AnyStyle | None = None, *, cmap: str | None = None, alpha: float | None = None
    ) -> Image.Image:
        """The picture in another style, colormap (of matplotlib) or opacity.

        Args:
            style: see `explain`.
            cmap: the name of a colormap of matplotlib.
            alpha: the opacity of an overlay at the upper end of the scale, 0 to 1.

        Raises:
            ConfigurationError: there is no such style or colormap, or the opacity is out of range.
        """
        return self._draw(self._restyle(None, style, cmap, alpha))

    def _restyle(
        self, format_: str | None, style: AnyStyle | None, cmap: str | None, alpha: float | None
    ) -> DrawingStyle:
        values: dict[str, Any] = {"format": format_, "panel": len(self._maps) > 1}
        if style is not None:
            values |= {"style": style, "signed": None}
        if cmap is not None:
            values["cmap"] = cmap
        if alpha is not None:
            values["alpha"] = alpha
        return self.plan.replace(**values).style

    def _draw(self, style: DrawingStyle) -> Image.Image:
        maps = self._frame_maps(style)
        if len(maps) == 1 and style.name != ATLAS:
            return maps[0].draw(self._frame)
        figure = atlas_figure if style.name == ATLAS else panel
        return figure([self._frame], maps, "", self.about).image()

    def _frame_maps(self, style: DrawingStyle) -> list[FrameMaps]:
        return frame_maps_of(self.explanation, self._frame.image.size, None, style)

    def save(
        self,
        path: str | os.PathLike[str],
        style: AnyStyle | None = None,
        *,
        cmap: str | None = None,
        alpha: float | None = None,
    ) -> None:
        """Write the picture to a file of any format that Pillow writes, also in another style, see `draw`.

        Raises:
            ConfigurationError: as for `draw`, or the format cannot hold the style.
        """
        is_jpeg = Path(path).suffix.lower() in (".jpg", ".jpeg")
        self._draw(self._restyle("jpg" if is_jpeg else None, style, cmap, alpha)).save(path)

    def _repr_html_(self) -> str:
        if self.photo is None:
            return "".join(f"<p>{escape(line)}</p>" for line in [repr(self), *self._column_lines])
        return notebook_view(self._frame_maps(self.style), self.photo, self.about)

    @property
    def _column_lines(self) -> list[str]:
        """The columns of tables, the one with the most evidence first, in words."""
        lines = []
        for map_ in self._maps:
            for table, columns in map_.columns.items():
                ranks = ", ".join(f"{name} {value:.3f}" for name, value in columns.items())
                lines.append(f"{map_.subject.label}, {table}: {ranks}")
        return lines

    def __repr__(self) -> str:
        titles = ", ".join(dict.fromkeys(map_.subject.title for map_ in self._maps))
        about = "; ".join([self.about, *self._maps[0].input_words[:1]])
        return f"<Saliency of {titles}; {about}>"
