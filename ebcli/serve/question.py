"""What the page asks about a photo: the address of a map. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ebcli.drawing.style import UNSIGNED_STYLES, DrawingStyle
from ebcli.errors import ConfigurationError

EVERY = "every"  # in place of a layer: all that the page offers


@dataclass(frozen=True)
class Question:
    """One map of a photo, and how it is drawn.

    Attributes:
        network: which of the networks.
        photo: what the page calls the photo.
        targets: the class, by index or name, or the text; none for the most likely ones, or all that is found.
        against: the class or text to contrast with.
        box: of a detector, the detection nearest to this left, top, width and height, in pixels.
        layer: the layer; empty for the default one, `EVERY` for all that the page offers.
        contrastive: a contrastive map, or a marginal one.
        style: how it is drawn.
    """

    network: int
    photo: str
    targets: tuple[str, ...]
    against: tuple[str, ...]
    box: tuple[float, float, float, float] | None
    layer: str
    contrastive: bool
    style: DrawingStyle

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Question:
        """The question of an address.

        Raises:
            ConfigurationError: it is no address of the page.
        """
        query = {name: value for name, value in query.items() if value}
        targets, against = ((query[name],) if name in query else () for name in ("target", "against"))
        style = query.get("style", DrawingStyle.name)
        is_signed = {"0": False, "1": True}.get(query.get("signed", ""), bool(against) and style not in UNSIGNED_STYLES)
        try:
            alpha, network = float(query.get("alpha", DrawingStyle.alpha)), int(query.get("network", 0))
            left, top, width, height = map(float, query.get("box", "0,0,0,0").split(","))
        except ValueError as error:
            raise ConfigurationError(f"this is no address of the page ({error}): open the page again") from error
        return cls(
            network,
            query.get("photo", ""),
            targets,
            against,
            (left, top, width, height) if "box" in query else None,
            query.get("layer", ""),
            query.get("marginal") != "1",
            DrawingStyle(style, alpha=alpha, signed=is_signed, cells=query.get("cells") == "1"),
        )

    @property
    def undrawn(self) -> Question:
        """The same question, however its map is drawn."""
        return replace(self, style=DrawingStyle())
