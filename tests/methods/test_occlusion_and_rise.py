"""Occlusion and RISE: against captum, closed forms of linear networks, and what passed the network."""

from concurrent.futures import CancelledError
from itertools import product
from math import ceil
from typing import Any

import numpy as np
import pytest
import torch
from color_net import color_net
from torch import Tensor, nn

import ebcli
from ebcli.methods import perturbation, table
from ebcli.methods.call import MethodCall

NAMES = ["occlusion", "rise"]
SIZES = [(24, 24), (20, 33), (17, 9)]


class Listening(nn.Module):
    """A network that keeps what passed it."""

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net
        self.pictures: list[Tensor] = []
        self.outputs: list[Tensor] = []

    def forward(self, *inputs: Tensor) -> Tensor:
        output = self.net(*inputs)
        self.pictures.append(inputs[0].clone())
        self.outputs.append(output.clone())
        return output


class Linear(nn.Module):
    """Logits (B, 2) that are sums of the pixels, weighted, and a constant."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.weights = torch.randn(2, *shape, generator=generator, dtype=torch.double)

    def forward(self, images: Tensor) -> Tensor:
        return torch.einsum("kc...,bc...->bk", self.weights, images) + 5


def noise(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(2), dtype=torch.double)


def of_classes(*classes: int) -> Any:
    """Priors of the same classes of each image."""

    def priors(output: Tensor) -> Tensor:
        starts = output.new_zeros(len(output), len(classes), *output.shape[1:])
        for k, index in enumerate(classes):
            starts[:, k, index] = 1
        return starts

    return priors


def maps_of(name: str, net: nn.Module, inputs: Any, priors: Any = None, **fields: Any) -> Tensor:
    call = MethodCall(net=net, inputs=inputs, priors=priors or of_classes(0, 1), layers=[None], **fields)
    (result,) = table.find_method(name).compute(call)
    assert result.layer is None
    return result.maps


def corners(side: int, window: int, stride: int) -> range:
    """Where windows start; the last one may be cut off by the picture's end."""
    return range(0, stride * ceil((side - window) / stride) + 1, stride)


@pytest.mark.parametrize("size", SIZES)
def test_occlusion_of_a_linear_network_is_the_sum_over_windows(size: tuple[int, int]) -> None:
    net, images = Linear(3, *size), noise(2, 3, *size)
    maps = maps_of("occlusion", net, images)
    contributions = torch.einsum("kcyx,bcyx->bkyx", net.weights, images).numpy()
    window = round(min(size) / 8)
    stride = max(1, window // 2)
    expected, counts = np.zeros_like(contributions), np.zeros(size)
    for y, x in product(*(corners(side, window, stride) for side in size)):
        part = np.s_[..., y : y + window, x : x + window]
        expected[part] += contributions[part].sum((-2, -1), keepdims=True)
        counts[part] += 1
    np.testing.assert_allclose(maps, expected / counts, rtol=1e-5, atol=1e-6)


def test_occlusion_is_captums() -> None:
    from captum.attr import Occlusion

    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 22 * 22, 3)).eval()
    images = torch.randn(2, 3, 24, 24)
    maps = maps_of("occlusion", net, images, of_classes(2, 0))
    for k, target in enumerate([2, 0]):
        expected = Occlusion(net).attribute(images, (3, 3, 3), (3, 1, 1), target=target)
        torch.testing.assert_close(maps[:, k], expected.mean(1))


def test_occlusion_of_a_volume_covers_blocks() -> None:
    volumes = torch.zeros(1, 1, 8, 16, 16, dtype=torch.double)
    volumes[..., 2:4, 4:8, 8:12] = 1  # a block: 1/4 of each side
    net = Linear(1, 8, 16, 16)
    net.weights[:] = 1
    (maps,) = maps_of("occlusion", net, volumes, of_classes(0))
    assert maps.shape == (1, 8, 16, 16)
    # a cell of the middle is covered by 2 x 2 x 2 windows: of the block's, each axis has one whole and one half
    assert maps[0, 2, 5, 9] == pytest.approx(32 * 0.75**3, rel=1e-5)
    assert maps[0, 6, 13, 1] == 0


def expected_rise(contributions: np.ndarray) -> np.ndarray:
    """The mean map over all masks of a linear network: what pixels contribute, times how masks vary together."""
    p = 0.5
    size = contributions.shape[-2:]
    together = []
    for side in size:
        count = round(7 * side / min(size))
        cell = ceil(side / count)
        length = (count + 1) * cell
        position = ((np.arange(length) + 0.5) * count / length - 0.5).clip(0, count - 1)
        shares = np.clip(1 - np.abs(position[:, None] - np.arange(count)), 0, None)  # of cells in each pixel
        cuts = [shares[shift : shift + side] for shift in range(cell)]
        together.append(np.mean([cut @ cut.T for cut in cuts], 0))
    return (1 - p) * np.einsum("...yx,yv,xw->...vw", contributions, *together)


def test_rise_of_a_linear_network(monkeypatch: pytest.MonkeyPatch) -> None:
    size = (20, 33)
    monkeypatch.setattr(perturbation, "NUM_MASKS", 20_000)
    net, images = Linear(3, *size), noise(2, 3, *size)
    maps = maps_of("rise", net, images, batch_size=500)
    contributions = torch.einsum("kcyx,bcyx->bkyx", net.weights, images).numpy()
    expected = expected_rise(contributions)
    for found, exact in zip(maps.numpy().reshape(4, -1), expected.reshape(4, -1), strict=True):
        assert np.corrcoef(found, exact)[0, 1] > 0.99
        assert np.polyfit(exact, found, 1)[0] == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize("size", [(28, 28), (28, 56), (30, 21)])
def test_rise_weights_the_masks_that_passed_by_their_scores(size: tuple[int, int]) -> None:
    net = Listening(nn.Sequential(nn.Flatten(), nn.Linear(size[0] * size[1], 2), nn.Tanh()))
    (maps,) = maps_of("rise", net, torch.ones(1, 1, *size)).detach()  # a white picture shows the masks
    masks = torch.cat(net.pictures)[1:, 0].detach().double()
    scores = torch.cat(net.outputs)[1:].detach().double()
    assert len(masks) == 1000
    published = torch.einsum("nk,nyx->kyx", scores, masks) / (1000 * 0.5)
    offset = scores.mean(0)[:, None, None] * masks.mean(0) / 0.5
    torch.testing.assert_close(maps.double(), published - offset, rtol=1e-4, atol=1e-5)
    assert masks.min() == 0
    assert masks.max() == 1
    assert (masks.mean(0) - 0.5).abs().max() < 0.08  # 1000 masks: five standard deviations of the mean
    assert masks.flatten(1).unique(dim=0).shape[0] == 1000
    # cells are squares: masks change as fast along both axes
    down, right = ((masks.diff(dim=axis) ** 2).mean() for axis in (1, 2))
    assert down / right == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize("name", NAMES)
def test_they_find_the_patch(name: str) -> None:
    images = torch.zeros(2, 3, 32, 32)
    images[0, 0, 20:28, 4:12] = images[1, 0, 2:10, 18:26] = 1  # red
    images[:, 1, 12:18, 12:18] = 1  # green
    maps = maps_of(name, color_net(), images, of_classes(0))[:, 0]
    for map_, (top, left) in zip(maps, [(20, 4), (2, 18)], strict=True):
        y, x = divmod(int(map_.argmax()), 32)
        assert top <= y < top + 8
        assert left <= x < left + 8
    if name == "occlusion":  # random masks may cover both
        assert not maps[:, 12:18, 12:18].any()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rise_finds_a_block_of_a_volume(dtype: torch.dtype) -> None:
    volumes = torch.zeros(1, 1, 10, 24, 40, dtype=dtype)
    volumes[..., 6:8, 4:10, 20:26] = 1
    net = Listening(lambda images: 10 * images.mean((2, 3, 4)))
    (maps,) = maps_of("rise", net, volumes, of_classes(0))
    assert maps.dtype == torch.float32
    assert maps.shape == (1, 10, 24, 40)
    z, y, x = np.unravel_index(int(maps.argmax()), (10, 24, 40))
    assert (abs(z - 7) < 2, abs(y - 7) < 4, abs(x - 23) < 4) == (True, True, True)


@pytest.mark.parametrize("name", NAMES)
def test_an_image_has_the_same_map_in_any_batch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perturbation, "NUM_MASKS", 100)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 18 * 14, 3)).eval()
    images = torch.rand(3, 3, 20, 16)
    maps = maps_of(name, net, images)
    state = torch.get_rng_state()
    (alone,) = maps_of(name, net, images[1:2])
    assert torch.equal(alone, maps[1])
    assert torch.equal(state, torch.get_rng_state())
    for batch_size in (1, 7, 5000):
        torch.testing.assert_close(maps_of(name, net, images, batch_size=batch_size), maps)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [*SIZES, (3, 5)])
def test_the_passes_are_known_before(name: str, size: tuple[int, int]) -> None:
    passes = table.find_method(name).passes_of(size)
    assert passes is not None
    net = Listening(lambda images: images.mean((2, 3)))
    reports: list[tuple[int, int]] = []
    maps_of(name, net, torch.rand(2, 3, *size), batch_size=4, progress=lambda *report: reports.append(report))
    assert sum(map(len, net.pictures)) == 2 * passes
    assert max(map(len, net.pictures)) == 4
    assert reports[-1] == (2 * passes, 2 * passes)
    assert [done for done, _ in reports] == list(np.cumsum([*map(len, net.pictures)]))
    assert {total for _, total in reports} == {2 * passes}


def test_the_passes_of_a_photo() -> None:
    passes = [table.find_method(name).passes_of((224, 224)) for name in NAMES]
    assert passes == [2 + 15 * 15, 1 + 1000]


def test_other_methods_take_few_passes() -> None:
    assert {name for name in table.method_names() if table.find_method(name).passes_of((224, 224))} >= {
        *NAMES
    }
    assert table.find_method("contrastive").passes_of((224, 224)) is None


@pytest.mark.parametrize("name", NAMES)
def test_progress_can_stop_them(name: str) -> None:
    net = Listening(lambda images: images.mean((2, 3)))

    def stop(done: int, _total: int) -> None:
        if done >= 20:
            raise CancelledError

    with pytest.raises(CancelledError):
        maps_of(name, net, torch.rand(1, 3, 24, 24), progress=stop)
    assert 20 <= sum(map(len, net.pictures)) < 28


@pytest.mark.parametrize("name", NAMES)
def test_operations_without_a_rule(name: str) -> None:
    class Product(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return torch.prod(1 + images[:, :, None], 2).mean((2, 3))

    images = torch.zeros(1, 2, 16, 16)
    images[:, 0, 3:6, 9:12] = 1
    with pytest.raises(ebcli.UnsupportedOpError):
        maps_of("contrastive", Product(), images)
    y, x = divmod(int(maps_of(name, Product(), images)[0, 0].argmax()), 16)
    assert abs(y - 4) < 3
    assert abs(x - 10) < 3


@pytest.mark.parametrize("name", NAMES)
def test_other_inputs_stay(name: str) -> None:
    def net(images: Tensor, table_: Tensor) -> Tensor:
        assert len(table_) == len(images)
        return images.mean((2, 3)) * table_

    images, rows = torch.rand(2, 3, 16, 16), torch.tensor([[1.0, 2.0, 3.0], [-4.0, 5.0, 6.0]])
    expected = maps_of(name, Listening(lambda images: images.mean((2, 3))), images)
    for inputs in [(images, rows), {"images": images, "table_": rows}]:
        module = nn.Module()
        module.forward = net  # type: ignore[assignment]
        maps = maps_of(name, module, inputs)
        torch.testing.assert_close(maps, expected * rows[:, :2, None, None], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_the_mean_over_a_mask_of_dense_outputs(name: str) -> None:
    net = nn.Conv2d(3, 4, 3, padding=1).eval()
    images = torch.rand(1, 3, 16, 16)
    mask = torch.zeros(16, 16)
    mask[2:5, 8:12] = 1 / 12

    def priors(output: Tensor) -> Tensor:
        starts = output.new_zeros(1, 1, *output.shape[1:])
        starts[0, 0, 3] = mask
        return starts

    mean = Listening(lambda images: (net(images)[:, 3:] * mask).sum((2, 3)))
    expected = maps_of(name, mean, images, of_classes(0))
    torch.testing.assert_close(maps_of(name, net, images, priors), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_scores_that_are_not_finite(name: str) -> None:
    net = Listening(lambda images: images.mean((2, 3)) / (images[:, :, 2, 2] != 0))
    with pytest.raises(ebcli.NonFiniteError, match="scores of covered pictures are not finite"):
        maps_of(name, net, torch.ones(1, 3, 16, 16))
