"""LabeledImages in Python: ``draw_map`` is the command's own picture, and notebooks show a result's maps."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from matplotlib import colormaps
from PIL import Image
from torch import Tensor, nn

import ebcli
from ebcli.cli.saliency import main
from ebcli.layouts import Layout

ROOT = Path(__file__).parents[2]
PHOTO = Image.new("RGB", (120, 80), (90, 140, 60))


def result(maps: Tensor, contrastive: bool = False, lead: int = 1) -> ebcli.ExcitationResult:
    """A result whose maps are these (B, ...) or (B, K, ...), of a layer with one channel."""
    relevance = maps.unsqueeze(lead)
    layer_shape = (len(maps), *relevance.shape[lead:])
    size = tuple(4 * side for side in maps.shape[lead:])
    mass = maps.flatten(lead).sum(lead)
    shapes = (len(maps), 3, *size), layer_shape
    layout = Layout(tuple(range(2, len(layer_shape))), layer_shape[2:])
    return ebcli.ExcitationResult(relevance, mass, maps, contrastive, "3", *shapes, layout=layout)


def quarters(top_left: float, top_right: float, left: float, right: float) -> Tensor:
    """A map (16, 16) that is even in each quarter: bicubic curves swing about the borders alone."""
    return (
        torch.tensor([[top_left, top_right], [left, right]]).repeat_interleave(8, 0).repeat_interleave(8, 1)
    )


def displayed(value: object) -> Image.Image | None:
    """What a notebook would show as a picture, by Jupyter's own machinery."""
    from IPython.core.formatters import DisplayFormatter  # not before a test needs it

    data, _ = DisplayFormatter().format(value)
    assert "text/plain" in data
    return Image.open(io.BytesIO(data["image/png"])) if "image/png" in data else None


def heatmaps(figure: Image.Image, shape: tuple[int, int] = (200, 200)) -> list[np.ndarray]:
    """The heatmaps in a figure on white, each (h, w, 3), row by row; no colour of theirs may be white."""
    values = np.asarray(figure.convert("RGB")).astype(int)
    filled = (values != 255).any(-1)
    height, width = shape
    corners = filled & ~np.roll(filled, 1, 0) & ~np.roll(filled, 1, 1)
    parts = [(slice(top, top + height), slice(left, left + width)) for top, left in np.argwhere(corners)]
    return [values[part] for part in parts if filled[part].shape == shape and filled[part].all()]


def test_it_is_the_commands_own_picture(tmp_path: Path) -> None:
    """With all that lies between: decoding, preprocessing, the layer, the network's crop, the colours."""
    photo = ROOT / "sample_images/rocket.jpg"
    run = CliRunner().invoke(main, [str(photo), "--target", "657", "-o", str(tmp_path / "map.png")])
    loaded, image = ebcli.load_model(preprocessing=ebcli.Preprocessing(fit="whole")), Image.open(photo)
    found = ebcli.excitation_backprop(
        loaded.net, loaded.transforms(image)[None], 657, ebcli.default_layer(loaded), contrastive=True
    )
    ours = np.asarray(ebcli.draw_map(image, found.maps[0], loaded.transforms)).astype(int)
    theirs = np.asarray(Image.open(run.stdout.strip())).astype(int)
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() <= 2  # the command's memory format differs, and so does rounding


@pytest.mark.parametrize("kind", [Tensor.tolist, Tensor.numpy, Tensor.double, Tensor.bfloat16])
def test_without_transforms_the_map_covers_the_image(kind: Callable[[Tensor], object]) -> None:
    drawn = np.asarray(ebcli.draw_map(PHOTO, kind(quarters(0, 0.5, 0.25, 1)), style="heatmap", cmap="gray"))
    assert drawn.shape == (80, 120, 3)
    assert drawn[[0, 0, 79, 79], [0, 119, 0, 119], 0].tolist() == [0, 128, 64, 255]


def test_a_map_that_requires_grad_and_an_image_with_transparency() -> None:
    saliency = torch.tensor([[0.0, 1.0]], requires_grad=True)
    drawn = ebcli.draw_map(PHOTO.convert("RGBA"), saliency, style="mask")
    assert np.asarray(drawn.getchannel("A"))[0, [0, -1]].tolist() == [0, 255]


@pytest.mark.parametrize(
    ("saliency", "options", "message"),
    [
        (torch.zeros(1, 2, 3), {}, r"the map has shape \(1, 2, 3\)"),
        (torch.zeros(0, 3), {}, r"the map has shape \(0, 3\)"),
        (torch.ones(2, 2), {"style": "glow"}, "unknown style 'glow'"),
        (torch.ones(2, 2), {"cmap": "virids"}, "did you mean 'viridis'"),
        (torch.ones(2, 2), {"alpha": 2}, "alpha is 2"),
        (torch.ones(2, 2), {"vmin": 1, "signed": True}, "set only vmax"),
    ],
)
def test_what_cannot_be_drawn_is_refused(saliency: Tensor, options: dict[str, object], message: str) -> None:
    with pytest.raises(ebcli.ConfigurationError, match=message):
        ebcli.draw_map(PHOTO, saliency, **options)  # type: ignore[arg-type]


def test_a_notebook_shows_each_map_in_its_place(written: list[tuple[float, float, str]]) -> None:
    """Maps (B, K, h, w) that are even but for one corner: rows are images, columns are targets."""
    maps = torch.ones(2, 3, 4, 4)
    for b in range(2):
        for k in range(3):
            maps[b, k, 3 * b, k] = 0
    figure = displayed(result(maps, lead=2))
    assert figure is not None
    found = heatmaps(figure)
    assert len(found) == 6
    ends = [np.array(colormaps["inferno"](end, bytes=True)[:3]).astype(int) for end in (0.0, 1.0)]
    for at, heatmap in enumerate(found):
        b, k = divmod(at, 3)
        dark = np.abs(heatmap - ends[0]).sum(-1) < np.abs(heatmap - ends[1]).sum(-1)
        rows, columns = np.nonzero(dark)
        assert (int(rows.mean() // 50), int(columns.mean() // 50)) == (3 * b, k)
    titles = [text for *_, text in written if text.startswith("image")]
    assert titles == [f"image {b}, target {k}" for b in range(2) for k in range(3)]


def test_contrastive_maps_are_shown_signed() -> None:
    figure = displayed(result(quarters(1, -0.5, 0.5, -1)[None], contrastive=True))
    assert figure is not None
    (found,) = heatmaps(figure)
    for (row, column), place in {(0, 0): 1.0, (199, 199): 0.0, (0, 199): 0.25, (199, 0): 0.75}.items():
        expected = np.array(colormaps["vanimo_r"](place, bytes=True)[:3]).astype(int)
        assert np.abs(found[row, column] - expected).max() <= 4


def test_maps_of_other_shapes(written: list[tuple[float, float, str]]) -> None:
    clip = displayed(result(torch.rand(1, 5, 3, 6)))
    assert clip is not None
    assert len(heatmaps(clip, (100, 200))) == 5
    assert [text for *_, text in written].count("6 × 3 cells") == 5
    signal = displayed(result(torch.rand(1, 10)))
    assert signal is not None
    assert len(heatmaps(signal, (20, 200))) == 1


def test_of_a_large_batch_some_are_shown() -> None:
    figure = displayed(result(torch.rand(100, 2, 2)))
    assert figure is not None
    assert len(heatmaps(figure)) == 32


def test_an_empty_map_and_one_that_is_not_finite_are_striped() -> None:
    figure = displayed(result(torch.stack([torch.zeros(2, 2), torch.full((2, 2), torch.nan)])))
    assert figure is not None
    colours = {tuple(colour) for heatmap in heatmaps(figure) for colour in heatmap.reshape(-1, 3)}
    assert colours == {(0, 0, 0), (200, 200, 200)}


def test_without_maps_there_is_only_text() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(48, 6), nn.ReLU(), nn.Linear(6, 3))
    found = ebcli.excitation_backprop(net, torch.rand(1, 3, 4, 4), 0, "1")
    assert displayed(found) is None
