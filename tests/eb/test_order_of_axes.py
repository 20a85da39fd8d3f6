"""Networks that permute or mirror the axes of their input: maps are in the order of the input at every layer."""

from collections.abc import Callable, Sequence
from itertools import permutations

import pytest
import torch
from torch import Tensor, nn

import ebcli
from ebcli.errors import LayerError

VOLUME, PHOTO = (5, 9, 13), (9, 13)  # of odd sides, so that strides of 2 begin at either end alike
MIRRORED = [(), (0,), (1, 2)]


class Reordered(nn.Module):
    """A network that reads its input with other axes."""

    def __init__(self, net: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.net, self.change = net, change

    def forward(self, x: Tensor) -> Tensor:
        return self.net(self.change(x))


def convolutions(extent: Sequence[int]) -> nn.Sequential:
    """Of 5 x 9 x 13 voxels, the first layer has as many channels as rows, and the second as slices."""
    conv = nn.Conv3d if len(extent) == 3 else nn.Conv2d
    shape = [(size + 1) // 2 for size in extent]
    torch.manual_seed(0)
    last = nn.Linear(3 * torch.Size(shape).numel(), 4)
    layers = conv(1, 5, 3, stride=2, padding=1), nn.ReLU(), conv(5, 3, 3, padding=1), nn.ReLU()
    return nn.Sequential(*layers, nn.Flatten(1), last).double().eval()


def twin_of(
    net: nn.Sequential, extent: Sequence[int], order: Sequence[int], mirrored: Sequence[int]
) -> nn.Sequential:
    """A network that makes of x what another one makes of x, its axes permuted and then mirrored: each weight has the
    place of the numbers it is for."""
    twin = convolutions(extent)
    back = [order.index(axis) for axis in range(len(order))]

    def move(weight: Tensor) -> Tensor:
        weight = weight.flip([2 + axis for axis in mirrored])
        return weight.permute(0, 1, *(2 + axis for axis in back))

    shape = [(extent[axis] + 1) // 2 for axis in order]
    with torch.no_grad():
        for layer, original in zip(twin, net, strict=True):
            if isinstance(original, nn.Linear):
                layer.weight.copy_(move(original.weight.unflatten(1, (3, *shape))).flatten(1))
            elif list(original.parameters()):
                layer.weight.copy_(move(original.weight))
            if list(original.parameters()):
                layer.bias.copy_(original.bias)
    return twin


def without_channels(x: Tensor, order: Sequence[int], mirrored: Sequence[int]) -> Tensor:
    moved = x[:, 0].permute(0, *(1 + axis for axis in order))
    return moved.unsqueeze(1).flip([2 + axis for axis in mirrored])


def with_channels(x: Tensor, order: Sequence[int], mirrored: Sequence[int]) -> Tensor:
    return x.permute(0, 1, *(2 + axis for axis in order)).flip([2 + axis for axis in mirrored])


@pytest.mark.parametrize(("reorder", "images"), [(with_channels, 1), (without_channels, 2)])
@pytest.mark.parametrize(
    ("extent", "order", "mirrored"),
    [
        *((VOLUME, order, mirrored) for order in permutations(range(3)) for mirrored in MIRRORED),
        *(((9, 9, 9), order, ()) for order in permutations(range(3))),
        *((PHOTO, order, mirrored) for order in permutations(range(2)) for mirrored in MIRRORED[:2]),
        ((9, 9), (1, 0), (0, 1)),
    ],
)
def test_maps_have_the_order_of_the_input(
    extent: tuple[int, ...], order: tuple[int, ...], mirrored: tuple[int, ...], reorder: Callable, images: int
) -> None:
    net = convolutions([extent[axis] for axis in order])
    twin = twin_of(net, extent, order, mirrored)
    x = torch.rand(images, 1, *extent, dtype=torch.double)
    reordered = Reordered(net, lambda x: reorder(x, order, mirrored))
    torch.testing.assert_close(reordered(x), twin(x))
    for layer in ("0", "3", None):
        name = layer and f"net.{layer}"
        maps = ebcli.excitation_backprop(reordered, x, 1, name, contrastive=True).maps
        expected = ebcli.excitation_backprop(twin, x, 1, layer, contrastive=True).maps
        assert expected.abs().max() > 1e-4
        torch.testing.assert_close(maps, expected)


class Attention(nn.Module):
    """Attention over the cells of channels-last features, beside which it adds nothing."""

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(1, -2)
        return ((tokens @ tokens.mT).softmax(-1) @ tokens).reshape(x.shape)


class ChannelsLast(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.movedim(1, -1)


def attending(channels: int) -> nn.Sequential:
    torch.manual_seed(0)
    stem = nn.Conv3d(1, channels, 3, padding=1), ChannelsLast(), Attention(), nn.ReLU()
    net = nn.Sequential(*stem, nn.Flatten(), nn.LazyLinear(4)).eval()
    net(torch.rand(1, 1, 4, 6, 6))
    return net


@pytest.mark.parametrize(
    ("channels", "change", "has_map"),
    [
        (9, lambda x: x, True),
        (7, lambda x: x, False),  # 6 rows and 7 columns could be 6 columns and 7 channels
        (9, lambda x: x.transpose(3, 4), False),
        (9, lambda x: x.flip(3), False),
    ],
)
def test_a_layer_whose_order_is_lost_is_refused(channels: int, change: Callable, has_map: bool) -> None:
    net = Reordered(attending(channels), change)
    result = ebcli.excitation_backprop(net, torch.rand(1, 1, 4, 6, 6), 1, "net.3")
    if has_map:
        torch.testing.assert_close(result.maps, result.relevance.sum(4))
        return
    with pytest.raises(
        LayerError, match=r"layer 'net.3' has no spatial dimensions that follow those of the input"
    ):
        _ = result.maps


def test_an_axis_that_is_averaged_is_a_single_cell() -> None:
    torch.manual_seed(0)
    stem = nn.Conv3d(1, 3, 3, padding=1), nn.AdaptiveAvgPool3d((None, None, 1)), nn.ReLU()
    net = nn.Sequential(*stem, nn.Flatten(), nn.LazyLinear(4)).eval()
    reordered = Reordered(net, lambda x: x.permute(0, 1, 3, 4, 2))  # (B, C, H, W, D)
    x = torch.rand(1, 1, 4, 6, 6)
    reordered(x)
    result = ebcli.excitation_backprop(reordered, x, 1, "net.2")
    torch.testing.assert_close(result.maps, result.relevance.sum(1).permute(0, 3, 1, 2))


class Windows(nn.Module):
    """8 windows of 2 x 4 cells: (B, windows, cells, c)."""

    def forward(self, x: Tensor) -> Tensor:
        split = x.unflatten(3, (2, 4)).unflatten(2, (4, 2))
        return split.permute(0, 2, 4, 3, 5, 1).flatten(3, 4).flatten(1, 2)


def test_windows_and_their_cells_are_no_rows_and_columns() -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1), Windows(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(4)
    ).eval()
    x = torch.rand(1, 3, 8, 8)
    net(x)
    result = ebcli.excitation_backprop(net, x, 1, "2")
    assert result.relevance.shape == (1, 8, 8, 12)
    with pytest.raises(LayerError, match="no spatial dimensions"):
        _ = result.maps


@pytest.mark.parametrize("mode", ["zeros", "reflect", "circular"])
def test_padding_of_any_kind_is_at_the_ends(mode: str) -> None:
    torch.manual_seed(0)
    stem = nn.Conv2d(3, 4, 3, stride=2, padding=1, padding_mode=mode), nn.ReLU()
    net = nn.Sequential(*stem, nn.Flatten(), nn.LazyLinear(4)).eval()
    x = torch.rand(1, 3, 8, 8)
    for change, back in ((lambda x: x, lambda x: x), (lambda x: x.flip(3), lambda x: x.flip(2))):
        reordered = Reordered(net, change)
        reordered(x)
        result = ebcli.excitation_backprop(reordered, x, 1, "net.1")
        torch.testing.assert_close(result.maps, back(result.relevance.sum(1)))
