"""What excitation_backprop() returns: relevance, and saliency maps, its sum over channels in any layout."""

import math
from dataclasses import dataclass

from torch import Tensor, nn

from ebcli.errors import LayerError


@dataclass(frozen=True)
class ExcitationResult:
    """Excitation Backprop at one layer, for B images. With K targets per image, every shape has K after B.

    Attributes:
        relevance: the probability at each element of the layer's output: (B, ...) or (B, K, ...). Never negative if
            marginal, signed if contrastive: the difference of two maps, which at a layer with class or register
            tokens, or with `against`, are both normalized over the cells of the map.
        mass: (B,) or (B, K), the sum of the marginal map: 1 minus what was lost at neurons activated only by their
            bias. None for contrastive maps, unless lost mass is tracked: it takes another backward pass.
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

    def __repr__(self) -> str:  # tensors in full would fill screens
        masses = [] if self.mass is None else self.mass.flatten().tolist()
        shown = ", ".join(f"{value:.3f}" for value in masses[:4]) + ", ..." * (len(masses) > 4)
        return (
            f"{type(self).__name__}(layer={self.layer!r}, contrastive={self.contrastive}, "
            f"relevance={tuple(self.relevance.shape)}, logits={tuple(self.logits.shape)}, "
            f"mass={None if self.mass is None else f'[{shown}]'})"
        )

    @property
    def special_tokens(self) -> int:
        """How many tokens at the front of the layer's output, such as a class token, are not cells of the map."""
        return special_tokens(self.layer_shape, self.input_shape, self.image_axis or 0)

    @property
    def maps(self) -> Tensor:
        """Relevance summed over channels, not clamped: (B, H, W) or (B, K, H, W).

        The axis of channels is that of `saliency_map` and, at the input, `channel_axis`.

        Raises:
            LayerError: the layer's output has no spatial dimensions, or the input's channels cannot be told.
        """
        lead = self.relevance.ndim - len(self.layer_shape)
        relevance = self.relevance.transpose(0, lead).movedim(lead + (self.image_axis or 0), 0)  # (B, ...), (B, K, ...)
        flat = relevance.flatten(0, lead)
        maps = saliency_map(flat, self.input_shape, layer=self.layer, channel_axis=self.channel_axis)
        return maps.reshape(*relevance.shape[: lead + 1], *maps.shape[1:])


def saliency_map(
    relevance: Tensor, input_shape: tuple[int, ...], *, layer: str | None = None, channel_axis: int | None = 1
) -> Tensor:
    """Sum a layer's relevance over its channels, unclamped.

    ====================  =========================  ===============
    input                 relevance                  map
    ====================  =========================  ===============
    (B, C, L)             (B, c, l)                  (B, l)
    (B, C, H, W)          (B, c, h, w)               (B, h, w)
    (B, C, H, W)          (B, h, w, c), as in Swin   (B, h, w)
    (B, C, H, W)          (B, h w, c), tokens        (B, h, w)
    (B, C, H, W)          (B, n + h w, c), as in ViT (B, h, w)
    (B, C, T, H, W)       the same with t before h   (B, t, h, w)
    ====================  =========================  ===============

    The grid has the input's aspect ratio, which tells where the channels are. Special tokens at the front (n of
    them: class token, distillation token, registers) are dropped.

    Args:
        relevance: a layer's relevance.
        input_shape: the shape of the network's input.
        layer: the layer's name; None for the input.
        channel_axis: the input's axis of channels, see `channel_axis_of`.

    Raises:
        LayerError: the layer has no spatial dimensions, or it is the input and `channel_axis` is None.
    """
    axis = 1 if channel_axis is None else channel_axis
    extent = input_shape[1:axis] + input_shape[axis + 1 :]
    grid = relevance.ndim - 2
    if layer is None and tuple(relevance.shape[1:]) == input_shape[1:] and len(extent) > 0:
        if channel_axis is None:
            raise LayerError(f"which axis of the input {input_shape} has channels is unknown: sum `relevance` over it")
        return relevance.sum(axis)
    if grid == len(extent):
        first, last = relevance.shape[2:], relevance.shape[1:-1]
        if math.prod(first) > 1:
            is_last = len(extent) > 1 and _fits(last, extent) and not _fits(first, extent)
            return relevance.sum(-1 if is_last else 1)
    elif grid == 1 and len(extent) > 1:
        special, shape = token_grid(relevance.shape[1], extent)
        if shape is not None:
            return relevance[:, special:].sum(2).unflatten(1, shape)
    what = "the input" if layer is None else f"layer {layer!r}"
    raise LayerError(
        f"{what} has no spatial dimensions (output shape {tuple(relevance.shape[1:])}): choose a layer whose output "
        "has height and width"
    )


def channel_axis_of(net: nn.Module, inputs: Tensor) -> int | None:
    """The axis of a network's inputs that holds the channels, told by its first layer; None if that does not tell.

    That is axis 1 of images and videos (B, C, ...), axis 2 of videos (B, T, C, H, W) whose frames a 2-D convolution
    reads, and the last axis of tokens (B, T, C) that a linear layer reads.
    """
    first = next((m for m in net.modules() if isinstance(m, (nn.Linear, nn.modules.conv._ConvNd))), None)
    if isinstance(first, nn.Linear) and inputs.shape[-1] == first.in_features:
        return inputs.ndim - 1
    if isinstance(first, nn.modules.conv._ConvNd):
        if inputs.ndim == first.weight.ndim and inputs.shape[1] == first.in_channels:
            return 1
        axes = [axis for axis in range(1, inputs.ndim) if inputs.shape[axis] == first.in_channels]
        return axes[0] if len(axes) == 1 else None
    return 1 if inputs.ndim > 3 else None


def special_tokens(layer_shape: tuple[int, ...], input_shape: tuple[int, ...], image_axis: int | None = 0) -> int:
    """How many tokens at the front of a layer's output (B, tokens, c) are not cells of its map; 0 for other layouts.

    Args:
        layer_shape: of the layer's output.
        input_shape: of the network's input.
        image_axis: the axis of images of the layer's output; None if it has none.
    """
    if image_axis is None or len(layer_shape) != 3 or len(input_shape) < 4:
        return 0
    return token_grid(layer_shape[0 if image_axis else 1], input_shape[2:])[0]


def token_grid(tokens: int, extent: tuple[int, ...]) -> tuple[int, tuple[int, ...] | None]:
    """The number of special tokens at the front and the grid of the others; None if they form no grid.

    Of several possible grids, the one with the fewest special tokens is used: 197 tokens are 1 + 14 x 14, and 261,
    with 4 registers, are 5 + 16 x 16.

    Args:
        tokens: their number.
        extent: the input's (H, W) or (T, H, W).
    """
    for special in range(10):  # at most a class token and eight registers
        shape = _grid(tokens - special, extent)
        # a tiny grid with many special tokens is unlikely to be one
        if shape is not None and (special < 2 or math.prod(shape) >= 3 * special):
            return special, shape
    return 0, None


def _fits(grid: tuple[int, ...], extent: tuple[int, ...]) -> bool:
    """Whether height and width shrank by the same factor, up to rounding."""
    (height, width), (full_height, full_width) = grid[-2:], extent[-2:]
    return abs(height - width * full_height / full_width) <= max(1, full_height / full_width)


def _grid(tokens: int, extent: tuple[int, ...]) -> tuple[int, ...] | None:
    """The grid (h, w) or (t, h, w) of square patches with that many cells; the finest in time."""
    height, width = extent[-2:]
    patches = {(height // side, width // side) for side in range(1, min(height, width) + 1)}
    patches |= {(-(-height // side), -(-width // side)) for side in range(1, max(height, width) + 1)}
    for t in range(extent[0], 0, -1) if len(extent) == 3 else [1]:
        for h, w in sorted(patches):
            if t * h * w == tokens > t:
                return (t, h, w) if len(extent) == 3 else (h, w)
    return None
