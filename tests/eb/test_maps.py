from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ebcli
from ebcli.errors import LayerError
from ebcli.layouts import extent_of, layout_by_shape, saliency_map

IMAGE = (2, 3, 224, 224)
WIDE = (2, 3, 192, 320)
CLIP = (1, 3, 16, 224, 224)


def map_by_shape(relevance: torch.Tensor, inputs: tuple[int, ...]) -> torch.Tensor:
    layout = layout_by_shape(tuple(relevance.shape), extent_of(inputs, 1))
    return saliency_map(relevance, layer="fc", channel_axis=1, layout=layout)


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
    maps = map_by_shape(hot(shape, place, axis), inputs)
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
    maps = map_by_shape(relevance, inputs)
    assert maps.shape == (inputs[0], *grid)
    assert maps[0].flatten().nonzero().tolist() == [[grid[-1] + 2]]
    assert maps[0].reshape(-1, *grid[-2:])[0, 1, 2] == 5


@pytest.mark.parametrize("shape", [(2, 1000), (2, 512, 1, 1), (2, 7, 5), (2, 4, 4, 4, 4)])
def test_no_spatial_extent(shape):
    with pytest.raises(LayerError, match=r"layer 'fc' has no spatial dimensions.*choose a layer"):
        map_by_shape(torch.zeros(shape), IMAGE)


SPECTROGRAM = [nn.Unflatten(1, (1, 8)), nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(168, 5)]


class Frames(nn.Module):
    """A network of the frames of videos (B, T, C, H, W)."""

    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4, 5)

    def forward(self, x):
        return self.fc(self.conv(x.flatten(0, 1)).relu().mean((2, 3)).unflatten(0, x.shape[:2]).mean(1))


class HeadFirst(nn.Module):
    """The linear layer, whose size is the width of the picture, is registered before the convolution."""

    def __init__(self):
        super().__init__()
        self.head, self.trunk = nn.Linear(4, 5), nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x):
        return self.head(self.trunk(x).relu().mean((2, 3)))


class OtherOrder(nn.Module):
    """Of two convolutions, the one that reads the picture is registered last."""

    def __init__(self):
        super().__init__()
        self.second, self.first = nn.Conv2d(4, 5, 1), nn.Conv2d(6, 4, 1)

    def forward(self, x):
        return self.second(self.first(x).relu()).mean((2, 3))


class Permute(nn.Module):
    def __init__(self, *axes):
        super().__init__()
        self.axes = axes

    def forward(self, x):
        return x.permute(self.axes)


@pytest.mark.parametrize(
    ("net", "shape", "axis"),
    [
        (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.LazyLinear(5)), (2, 3, 6, 7), 1),
        (lambda: nn.Sequential(nn.Conv1d(5, 4, 3), nn.Flatten(), nn.LazyLinear(5)), (2, 5, 9), 1),
        (lambda: nn.Sequential(nn.Linear(7, 4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(5)), (2, 6, 7), 2),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(126, 5)), (2, 3, 6, 7), 1),
        (Frames, (2, 4, 3, 6, 7), 2),
        (
            lambda: nn.Sequential(
                nn.Unflatten(1, (1, 8)), nn.Conv2d(1, 4, 3), nn.Flatten(), nn.LazyLinear(5)
            ),
            (2, 8, 9),
            None,
        ),
        (Frames, (2, 3, 3, 6, 7), 2),  # three frames of three colors
        (HeadFirst, (2, 3, 4, 4), 1),
        (OtherOrder, (2, 6, 4, 4), 1),
        (
            lambda: nn.Sequential(Permute(0, 3, 1, 2), nn.Conv2d(3, 4, 3), nn.Flatten(), nn.LazyLinear(5)),
            (2, 4, 5, 3),
            3,
        ),
        (
            lambda: nn.Sequential(
                Permute(0, 3, 1, 2), nn.ZeroPad2d(1), nn.Conv2d(3, 4, 3), nn.Flatten(), nn.LazyLinear(5)
            ),
            (2, 4, 5, 3),
            3,
        ),
        (lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.LazyLinear(5)), (2, 1, 4, 5), 1),
        (
            lambda: nn.Sequential(nn.Linear(6, 4), nn.Flatten(), nn.LazyLinear(5)),
            (2, 3, 6, 6),
            1,
        ),  # rows of pixels
        (lambda: nn.Sequential(nn.Linear(3, 4), nn.Flatten(), nn.LazyLinear(5)), (2, 6, 6, 3), 3),
    ],
    ids=(
        "image, series, tokens, perceptron, video, spectrogram, few frames, a head registered first, convolutions in "
        "another order, channels last, channels last and padded, gray, rows of pixels, linear layer of pixels"
    ).split(", "),
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


class Transformer(nn.Module):
    """Patches of 2 x 2 pixels, with tokens that are no cells, through two layers of attention and to a class token.

    Args:
        front, back: how many such tokens are before and behind the patches; the first one is the class token.
        by_columns: the patches are numbered from top to bottom.
        tokens_first: values are (tokens, B, channels).
        linear: the patches are read by a linear layer.
    """

    def __init__(self, front, back=0, *, by_columns=False, tokens_first=False, linear=False):
        super().__init__()
        torch.manual_seed(0)
        self.patches = nn.Conv2d(3, 8, 2, stride=2)
        self.linear = nn.Linear(12, 8) if linear else None
        self.front, self.back = nn.Parameter(torch.rand(front, 8)), nn.Parameter(torch.rand(back, 8))
        self.by_columns, self.tokens_first = by_columns, tokens_first
        self.joined, self.attended = nn.Identity(), nn.Identity()
        layer = partial(nn.TransformerEncoderLayer, 8, 2, 16, batch_first=not tokens_first)
        self.one, self.two = layer(), layer()
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        if self.linear is not None:
            tokens = self.linear(F.unfold(x, 2, stride=2).mT)
        else:
            cells = self.patches(x)
            tokens = (cells.mT if self.by_columns else cells).flatten(2).mT
        others = [part.expand(len(x), -1, -1) for part in (self.front, self.back)]
        tokens = torch.cat([others[0], tokens, others[1]], 1)
        if self.tokens_first:
            tokens = tokens.transpose(0, 1)
        tokens = self.two(self.attended(self.one(self.joined(tokens))))
        return self.head(tokens[0] if self.tokens_first else tokens[:, 0])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("layer", ["joined", "attended"])
@pytest.mark.parametrize("contrastive", [False, True])
@pytest.mark.parametrize(
    ("net", "size"),
    [
        (lambda: Transformer(5), (16, 10)),  # 45 tokens, which are 9 x 5, too
        (lambda: Transformer(1, 4), (16, 10)),
        (lambda: Transformer(2, 3, by_columns=True), (16, 10)),
        (lambda: Transformer(5, tokens_first=True), (16, 10)),
        (lambda: Transformer(5, linear=True), (16, 10)),
        (lambda: Transformer(3), (2, 14)),  # one row
        (lambda: Transformer(1), (6, 6)),
    ],
    ids="registers, behind, by columns, tokens first, linear, one row, class token".split(", "),
)
def test_tokens_that_come_from_no_cell_are_none(net, size, layer, contrastive, images):
    net = net().eval().double()
    x = torch.rand(images, 3, *size, dtype=torch.double)
    result = ebcli.excitation_backprop(net, x, 1, layer, contrastive)
    relevance = result.relevance.transpose(0, 1) if net.tokens_first else result.relevance
    count = relevance.shape[1] - len(net.back)
    cells = relevance[:, len(net.front) : count].sum(2)
    height, width = size[0] // 2, size[1] // 2
    maps = cells.unflatten(1, (width, height)).mT if net.by_columns else cells.unflatten(1, (height, width))
    torch.testing.assert_close(result.maps, maps)
    assert result.special_tokens == len(net.front) + len(net.back)
    if contrastive:  # both maps were normalized over the cells
        torch.testing.assert_close(result.maps.sum((1, 2)), torch.zeros(images).double(), atol=1e-9, rtol=0)


def by_windows(tokens: torch.Tensor) -> torch.Tensor:
    """Tokens (B, 8 x 8, c) ordered by their place in windows of 2 x 2, then by the window: (B, 4, 16, c)."""
    windows = tokens.unflatten(1, (4, 2, 4, 2)).permute(0, 2, 4, 1, 3, 5)
    return windows.flatten(3, 4).flatten(1, 2)


class Chosen(nn.Module):
    """Tokens of 2 x 2 pixels, of which some are chosen. A class token stands behind them.

    Args:
        choose: what becomes of tokens (B, 8 x 8, c).
    """

    def __init__(self, choose):
        super().__init__()
        torch.manual_seed(0)
        self.choose = choose
        self.patches = nn.Conv2d(3, 8, 2, stride=2)
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.joined = nn.Identity()
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        tokens = self.choose(self.patches(x).flatten(2).mT)
        tokens = self.joined(torch.cat([tokens, self.token.expand(len(x), -1, -1)], 1))
        return self.head(tokens.mean(1))


@pytest.mark.parametrize("keepdim", [False, True])
def test_the_maximum_of_several_cells_is_one_cell(keepdim):
    """As in Hiera, where the tokens that are pooled are behind one another."""

    def pool(tokens):
        columns_first = by_windows(tokens).unflatten(2, (4, 4)).transpose(2, 3).flatten(2, 3)
        pooled = columns_first.max(1, keepdim=keepdim).values
        return pooled.squeeze(1) if keepdim else pooled

    result = ebcli.excitation_backprop(Chosen(pool).eval(), torch.rand(2, 3, 16, 16), 1, "joined")
    cells = result.relevance[:, :16].sum(2)
    torch.testing.assert_close(result.maps, cells.unflatten(1, (4, 4)).mT)
    assert result.special_tokens == 1


def strongest(tokens):
    """A quarter of the tokens, as many as a grid has."""
    best = tokens.square().sum(2).topk(16, 1).indices
    return tokens.gather(1, best[..., None].expand(-1, -1, 8))


def strongest_queries(tokens):
    """What attention returns to a quarter of the tokens."""
    weights = (tokens @ tokens.mT).softmax(2)
    best = weights.square().sum(2).topk(16, 1).indices
    return weights.gather(1, best[..., None].expand(-1, -1, 64)) @ tokens


@pytest.mark.parametrize(
    "choose",
    [
        strongest,
        strongest_queries,
        lambda tokens: tokens.sort(1).values,
        lambda tokens: tokens[:, tokens.square().sum((0, 2)).argsort()],
    ],
    ids=["strongest", "strongest queries", "sorted", "by order"],
)
def test_tokens_that_each_image_chooses_have_no_map(choose):
    net = Chosen(choose).eval()
    result = ebcli.excitation_backprop(net, torch.rand(2, 3, 16, 16), 1, "joined")
    with pytest.raises(LayerError, match="no spatial dimensions"):
        result.maps  # noqa: B018
    strides = {layer.name: layer.stride for layer in ebcli.layers(net, 16)}
    assert strides == {"patches": 2, "joined": None, "head": None}


def test_an_activation_with_a_condition_keeps_the_cells():
    net = Chosen(lambda tokens: torch.where(tokens > 0, tokens, tokens / 5)).eval()
    result = ebcli.excitation_backprop(net, torch.rand(2, 3, 16, 16), 1, "joined")
    torch.testing.assert_close(result.maps, result.relevance[:, :64].sum(2).unflatten(1, (8, 8)))


@pytest.mark.parametrize("size", [(6, 10), (7, 9)])
def test_channels_last_are_told_where_the_shape_leaves_a_doubt(size):
    height, width = size
    block = nn.Sequential(
        nn.Conv2d(3, width, 1), Permute(0, 2, 3, 1), nn.LayerNorm(width), nn.ReLU()
    )  # (h, w, w)
    net = nn.Sequential(block, nn.Flatten(), nn.Linear(height * width * width, 5)).eval()
    result = ebcli.excitation_backprop(net, torch.rand(1, 3, height, width), 1, "0")
    torch.testing.assert_close(result.maps, result.relevance.sum(3))


def test_tokens_of_a_series_are_its_map():
    net = nn.Sequential(
        nn.Conv1d(3, 6, 2, stride=2), Permute(0, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(24, 5)
    ).eval()
    result = ebcli.excitation_backprop(net, torch.rand(2, 3, 8), 1, "2")
    torch.testing.assert_close(result.maps, result.relevance.sum(2))


def test_a_maximum_that_drops_an_axis_does_not_keep_those_behind_it() -> None:
    class Largest(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([x, x.new_ones(len(x), 1, 6)], 1).amax(1)

    net = nn.Sequential(Largest(), nn.Linear(6, 4))
    result = ebcli.excitation_backprop(net, torch.rand(2, 4, 6), 1, layer="0")
    assert result.relevance.shape == (2, 6)
