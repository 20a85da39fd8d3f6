"""What the page asks about a photo: the address of a map. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ebcli.drawing.style import DrawingStyle
from ebcli.errors import ConfigurationError
from ebcli.nouns.box import Box

EVERY = "every"  # in place of a layer: all that the page offers


@dataclass(frozen=True, kw_only=True)
class Question:
    """One map of a photo, and how it is drawn.

    Attributes:
        network: which of the networks.
        photo: what the page calls the photo.
        target: the class, by index or name, or the text; none for the most likely ones, or all that is found.
        against: the class or text to contrast with.
        where: of a detector, the detection nearest to this one.
        layer: the layer; empty for the default one, `EVERY` for all that the page offers.
        contrastive: a contrastive map, or a marginal one.
        top_k: the number of classes if there is no target; None for one.
        style, alpha, signed, cells: how it is drawn; see ``RunPlan.of``.
    """

    network: int
    photo: str
    target: tuple[str, ...]
    against: tuple[str, ...]
    where: Box | None
    layer: str
    contrastive: bool
    top_k: int | None = None
    style: str = DrawingStyle.name
    alpha: float = DrawingStyle.alpha
    signed: bool | None = None
    cells: bool = False

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "Question":
        """The question of an address.

        Raises:
            ConfigurationError: it is no address of the page.
        """
        query = {name: value for name, value in query.items() if value}
        target, against = ((query[name],) if name in query else () for name in ("target", "against"))
        try:
            alpha, network = float(query.get("alpha", DrawingStyle.alpha)), int(query.get("network", 0))
            left, top, width, height = map(float, query.get("box", "0,0,0,0").split(","))
        except ValueError as error:
            raise ConfigurationError(f"this is no address of the page ({error}): open the page again") from error
        return cls(
            network=network,
            photo=query.get("photo", ""),
            target=target,
            against=against,
            where=Box.of_size(left, top, width, height) if "box" in query else None,
            layer=query.get("layer", ""),
            contrastive=query.get("marginal") != "1",
            style=query.get("style", DrawingStyle.name),
            alpha=alpha,
            signed={"0": False, "1": True}.get(query.get("signed", "")),
            cells=query.get("cells") == "1",
        )

    @property
    def undrawn(self) -> "Question":
        """The same question, however its map is drawn."""
        return replace(self, style=DrawingStyle.name, alpha=DrawingStyle.alpha, signed=None, cells=False)

    def likeliest(self, count: int) -> "Question":
        """The question for the maps of the likeliest classes of the same photo."""
        question = replace(self.undrawn, target=(), against=(), where=None)
        return replace(question, layer="", contrastive=True, top_k=count)

    @property
    def values(self) -> dict[str, Any]:
        """The values of a plan."""
        return {name: value for name, value in vars(self).items() if name not in ("network", "photo", "layer")}
