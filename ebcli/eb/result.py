"""What excitation_backprop() returns: relevance, and saliency maps, its sum over channels."""

from dataclasses import dataclass
from importlib import import_module

from torch import Tensor

from ebcli.layouts import Layout, saliency_map


@dataclass(frozen=True)
class ExcitationResult:
    """Excitation Backprop at one layer, for B images. With K targets per image, every shape has K after B.

    Attributes:
        relevance: the probability at each element of the layer's output: (B, ...) or (B, K, ...). Never negative if
            marginal, signed if contrastive: the difference of two maps, which at a layer with class or register
            tokens, or with `against`, are both normalized over the cells of the map.
        mass: (B,) or (B, K), the sum of `relevance` of the marginal map, class and register tokens of the layer
            included: 1 minus what was lost at neurons activated only by their bias, what constants took that are joined
            above the layer, such as a class token, and what bypassed it. None for contrastive maps, unless lost mass is
            tracked: it takes another backward pass.
        logits: (B, num_classes), the network's output; (B, num_classes, H, W) for dense predictions.
        contrastive: whether `relevance` is contrastive.
        layer: the layer's name; None for the input.
        input_shape: shape of the network's input.
        layer_shape: shape of the layer's output.
        lost_mass: with ``track_lost_mass``, (B,) or (B, K) for each operation that lost probability, by its name and
            module: the probability that arrived at neurons to which no input contributes. Whatever `mass` and
            these leave of 1 bypassed the layer or ended at constants. None if it was not tracked.
        joint: whether all winning neurons were explained jointly rather than step by step.
        against: the classes whose mean map was subtracted; None if it was the dual's, or none.
        channel_axis: the input's axis of channels; None if the network does not tell.
        image_axis: the axis of images of the layer's output; None if it has none.
        head: the name of the head that was explained; None of the only one.
        layout: where the layer's output holds the cells of the map; None if it has no map, or is the input.

    Examples:
        >>> import ebcli, torch
        >>> from torch import nn
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))
        >>> result = ebcli.excitation_backprop(net, torch.rand(2, 3, 8, 8), targets=[[1, 2], [3, 4]], layer="1")
        >>> result.relevance.shape, result.maps.shape, result.mass.shape
        (torch.Size([2, 2, 8, 6, 6]), torch.Size([2, 2, 6, 6]), torch.Size([2, 2]))
        >>> torch.allclose(result.maps.sum((2, 3)), result.mass)
        True
    """

    relevance: Tensor
    mass: Tensor | None
    logits: Tensor
    contrastive: bool
    layer: str | None
    input_shape: tuple[int, ...]
    layer_shape: tuple[int, ...]
    lost_mass: dict[str, Tensor] | None = None
    against: tuple[int, ...] | None = None
    joint: bool = False
    channel_axis: int | None = 1
    image_axis: int | None = 0
    head: str | None = None
    layout: Layout | None = None

    def __repr__(self) -> str:  # tensors in full would fill screens
        mass = None
        if self.mass is not None:
            masses = [f"{value:.3f}" for value in self.mass.flatten().tolist()]
            if len(masses) > 4:
                masses[4:] = ["..."]
            mass = f"[{', '.join(masses)}]"
        head = "" if self.head is None else f"head={self.head!r}, "
        method = "contrastive" if self.contrastive else "marginal"
        return (
            f"{type(self).__name__}({head}layer={self.layer!r}, method={method!r}, "
            f"relevance={tuple(self.relevance.shape)}, logits={tuple(self.logits.shape)}, "
            f"mass={mass})"
        )

    def _repr_png_(self) -> bytes | None:
        """All maps in one picture, for notebooks, which alone need the package that draws."""
        return import_module("ebcli.drawing.api").png(self)

    @property
    def special_tokens(self) -> int:
        """How many tokens of the layer's output, such as a class token, are not cells of the map."""
        if self.layout is None:
            return 0
        return self.layout.special

    @property
    def maps(self) -> Tensor:
        """Relevance summed over channels, not clamped: (B, H, W) or (B, K, H, W).

        The axes of channels are those that `layout` leaves and, at the input, `channel_axis`.

        Raises:
            LayerError: the layer's output has no spatial dimensions, or the input's channels cannot be told.
        """
        lead = self.relevance.ndim - len(self.layer_shape)
        # (B, ...), (B, K, ...)
        relevance = self.relevance.transpose(0, lead).movedim(lead + (self.image_axis or 0), 0)
        flat = relevance.flatten(0, lead)
        maps = saliency_map(flat, layer=self.layer, channel_axis=self.channel_axis, layout=self.layout)
        return maps.reshape(*relevance.shape[: lead + 1], *maps.shape[1:])
