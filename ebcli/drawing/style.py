"""How maps are drawn: the options of a picture, checked. Imports neither numpy nor torch."""

from dataclasses import KW_ONLY, dataclass, replace
from math import inf
from typing import Literal, get_args

from ebcli.errors import ConfigurationError, check_value

FINE = 10_000  # cells: from so many on, a few outliers would leave the rest of a map dark
FINE_PERCENTILE = 99.5

Style = Literal["overlay", "heatmap", "side-by-side", "mask", "contour", "paper"]
AnyStyle = Style | Literal["atlas"]  # which is a figure of all maps of an image
STYLES: tuple[str, ...] = get_args(Style)
ATLAS = "atlas"
UNSIGNED_STYLES = ("mask", "paper", ATLAS)


@dataclass(frozen=True)
class DrawingStyle:
    """The style of a picture, its colors and its color scale.

    The ends of the scale are in units of a uniform map: 1 is the value that each of a map's h x w cells would have if
    the probability were spread evenly over them, 1 / (h w). So they mean the same at every resolution.

    Attributes:
        name: one of ``STYLES``, or ``ATLAS``.
        cmap: the name of a matplotlib colormap; None for the style's own.
        alpha: the opacity of an overlay at the upper end of the scale, 0 to 1.
        signed: draw negative values as well, on a scale symmetric about 0.
        vmin: the lower end of the scale; 0 if it is signed.
        vmax: the upper end of the scale; None for each map's own, see ``percentile``.
        percentile: end each map's own scale at this percentile of its positive values; 100 is the maximum. None for the
            maximum, and ``FINE_PERCENTILE`` for maps of at least ``FINE`` cells.
        cells: draw the layer's cells with hard edges, without interpolation.
        background: the opacity of a mask where the map is 0, 0 to 1.
        caption: put class, score and color scale in a strip below each picture.
        header: put the name of the image, and model, layer and method, above figures.
        cell_size: the longer side of each picture in a figure, in pixels; None for 3 inches.
        dpi: pixels per inch of a figure; its text and lines grow with it.

    Raises:
        ConfigurationError: a value is out of range, or two of them exclude each other.
    """

    name: str = "overlay"
    _: KW_ONLY
    cmap: str | None = None
    alpha: float = 0.85
    signed: bool = False
    vmin: float = 0.0
    vmax: float | None = None
    percentile: float | None = None
    cells: bool = False
    background: float = 0.0
    caption: bool = False
    header: bool = True
    cell_size: int | None = None
    dpi: int = 100

    def __post_init__(self) -> None:
        if self.name not in (*STYLES, ATLAS):
            raise ConfigurationError(f"unknown style {self.name!r}: choose {', '.join((*STYLES, ATLAS))}")
        check_value("alpha", self.alpha, lambda it: 0 <= it <= 1, "between 0 and 1")  # also refuses NaN
        if self.signed and self.name in UNSIGNED_STYLES:
            raise ConfigurationError(f"the style {self.name} cannot show negative values: drop signed")
        if self.cells and self.name == "contour":
            raise ConfigurationError("contours need interpolated values: drop cells, or choose another style")
        check_value("the background", self.background, lambda it: 0 <= it <= 1, "between 0 and 1")
        check_value("the percentile", self.percentile, lambda it: 0 < it <= 100, "above 0 and at most 100")
        if self.cell_size is not None and not 50 <= self.cell_size <= 5000:
            problem = f"the cell size is {self.cell_size} pixels"
            raise ConfigurationError(f"{problem}, but it must be from 50 to 5000")
        check_value("dpi", self.dpi, lambda it: 50 <= it <= 1200, "from 50 to 1200")
        check_value("vmin", self.vmin, lambda it: 0 <= it < inf, "at least 0")
        if self.vmin and self.signed:
            raise ConfigurationError("a signed scale is symmetric about 0: set only vmax")
        check_value("vmax", self.vmax, lambda it: self.vmin < it < inf, f"greater than vmin, {self.vmin:g}")
        if self.vmax is not None and self.percentile is not None:
            problem = "vmax and percentile both set the upper end of the scale"
            raise ConfigurationError(f"{problem}: drop one of them")

    def percentile_of(self, cells: int) -> float:
        """The percentile at which the scale of a map with so many cells ends."""
        if self.percentile is not None:
            return self.percentile
        return FINE_PERCENTILE if cells >= FINE else 100.0

    def for_map(self, is_two_sided: bool) -> "DrawingStyle":
        """The style for a single map; if it is two-sided, with its negative values if this style can show them."""
        if self.name == ATLAS:
            return replace(self, name=DrawingStyle.name)
        if is_two_sided and self.name not in UNSIGNED_STYLES and not self.vmin:
            return replace(self, signed=True)
        return self

    @property
    def colormap(self) -> str:
        """The name of the matplotlib colormap in use."""
        if self.cmap:
            return self.cmap
        if self.signed:
            return "vanimo_r"
        return "jet" if self.name == "paper" else "inferno"
