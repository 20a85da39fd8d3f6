import pytest
import torch
from torch import nn

import ebcli
from ebcli.errors import LayerError
from ebcli.layouts import saliency_map

IMAGE = (2, 3, 224, 224)
WIDE = (2, 3, 192, 320)
CLIP = (1, 3, 16, 224, 224)


def hot(shape: tuple[int, ...], place: tuple[int, ...], channel_axis: int) -> torch.Tensor:
    """Ones in all channels of one cell of the first image, zeros elsewhere."""
    relevance = torch.zeros(shape)
    cell = [0, *place]
    cell.insert(channel_axis, slice(None))
    relevance[tuple(cell)] = 1
    return relevance


@pytest.mark.parametrize(
    ("shape", "axis", "inputs", "grid"),
    [
        ((2, 512, 14, 14), 1, IMAGE, (14, 14)),
        ((2, 56, 56, 96), 3, IMAGE, (56, 56)),
        ((2, 64, 6, 10), 1, WIDE, (6, 10)),
        ((2, 48, 80, 96), 3, WIDE, (48, 80)),
        ((2, 10, 6, 10), 1, WIDE, (6, 10)),  # 10 channels that look like a width
        ((1, 32, 8, 28, 28), 1, CLIP, (8, 28, 28)),
        ((1, 8, 56, 56, 96), 4, CLIP, (8, 56, 56)),
        ((2, 3, 224, 224), 1, IMAGE, (224, 224)),
    ],
)
def test_channels_are_found(shape, axis, inputs, grid):
    place = tuple(range(1, len(grid) + 1))
    maps = saliency_map(hot(shape, place, axis), inputs)
    assert maps.shape == (shape[0], *grid)
    assert maps[(0, *place)] == shape[axis]
    assert maps.sum() == shape[axis]


@pytest.mark.parametrize(
    ("tokens", "special", "inputs", "grid"),
    [
        (196, 0, IMAGE, (14, 14)),
        (197, 1, IMAGE, (14, 14)),
        (198, 2, IMAGE, (14, 14)),  # and a distillation token
        (261, 5, IMAGE, (16, 16)),  # and four registers
        (240, 0, WIDE, (12, 20)),
        (241, 1, WIDE, (12, 20)),
        (1 + 8 * 56 * 56, 1, CLIP, (8, 56, 56)),
        (8 * 7 * 7, 0, CLIP, (8, 7, 7)),
    ],
)
def test_tokens_are_laid_out_row_by_row(tokens, special, inputs, grid):
    relevance = torch.zeros(inputs[0], tokens, 5)
    relevance[0, special + grid[-1] + 2] = 1  # second row, third column
    if special:
        relevance[0, :special] = 100  # the class token is no place
    maps = saliency_map(relevance, inputs)
    assert maps.shape == (inputs[0], *grid)
    assert maps[0].flatten().nonzero().tolist() == [[grid[-1] + 2]]
    assert maps[0].reshape(-1, *grid[-2:])[0, 1, 2] == 5


@pytest.mark.parametrize("shape", [(2, 1000), (2, 512, 1, 1), (2, 7, 5), (2, 4, 4, 4, 4)])
def test_no_spatial_extent(shape):
    with pytest.raises(LayerError, match=r"layer 'fc' has no spatial dimensions.*choose a layer"):
        saliency_map(torch.zeros(shape), IMAGE, layer="fc")


SPECTROGRAM = [nn.Unflatten(1, (1, 8)), nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(168, 5)]


class Frames(nn.Module):
    """A network of the frames of videos (B, T, C, H, W)."""

    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4, 5)

    def forward(self, x):
        return self.fc(self.conv(x.flatten(0, 1)).relu().mean((2, 3)).unflatten(0, x.shape[:2]).mean(1))


@pytest.mark.parametrize(
    ("net", "shape", "axis"),
    [
        (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.LazyLinear(5)), (2, 3, 6, 7), 1),
        (lambda: nn.Sequential(nn.Conv1d(5, 4, 3), nn.Flatten(), nn.LazyLinear(5)), (2, 5, 9), 1),
        (lambda: nn.Sequential(nn.Linear(7, 4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(5)), (2, 6, 7), 2),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(126, 5)), (2, 3, 6, 7), 1),
        (Frames, (2, 4, 3, 6, 7), 2),
        (
            lambda: nn.Sequential(nn.Unflatten(1, (1, 8)), nn.Conv2d(1, 4, 3), nn.Flatten(), nn.LazyLinear(5)),
            (2, 8, 9),
            None,
        ),
        (Frames, (2, 3, 3, 6, 7), None),  # three frames of three colors
    ],
    ids=["image", "series", "tokens", "perceptron", "video", "spectrogram", "few frames"],
)
def test_the_input_is_summed_over_its_channels(net, shape, axis):
    x = torch.rand(shape)
    net = net().eval()
    net(x)
    result = ebcli.excitation_backprop(net, x, 1)
    if axis is None:
        with pytest.raises(LayerError, match="which axis"):
            _ = result.maps
    else:
        torch.testing.assert_close(result.maps, result.relevance.sum(axis))
        assert result.maps.shape == x.sum(axis).shape
