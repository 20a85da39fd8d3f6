"""Networks and images in memory, whatever they are, and results as arrays."""

import io
import re
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from browser import start
from color_net import GREEN, RED, color_net, painted
from hostile_text import CLOSING, HOSTILE, assert_harmless
from several_inputs import RedAndTable
from torch import nn
from torchvision import models
from torchvision.transforms import v2
from web_server import Server

import ebcli
from ebcli.drawing.style import STYLES

NAMES = ("red", "green", "blue")
WHERE = (70, 20, 90, 50)  # left, top, right, bottom of the red patch
PHOTO = painted((120, 60), (RED, WHERE), (GREEN, (45, 5, 55, 15)))
TO_32 = v2.Compose([v2.Resize((32, 32)), v2.PILToTensor(), v2.ToDtype(torch.float32, scale=True)])
browser = pytest.fixture(scope="module")(start)


def means(images: torch.Tensor) -> Any:
    return images.numpy().mean((2, 3))


def inside(found: ebcli.Saliency, box: tuple[int, int, int, int] = WHERE) -> float:
    """The share of the positive heatmap in a box, which may be blurred by some pixels."""
    heat = np.maximum(found.heatmap()[0], 0)
    left, top, right, bottom = box
    return float(heat[max(0, top - 6) : bottom + 6, max(0, left - 6) : right + 6].sum() / heat.sum())


def test_a_module_is_explained_and_stays_as_it_is() -> None:
    net = models.resnet18(num_classes=4).train()
    net.layer1.eval()
    seen: list[torch.Size] = []
    net.register_forward_hook(lambda _net, args, _output: seen.append(args[0].shape))
    state = {name: value.clone() for name, value in net.state_dict().items()}
    strides = {name: value.stride() for name, value in net.named_parameters()}
    modes, hooks = [one.training for one in net.modules()], len(net._forward_hooks)
    inputs = torch.rand(3, 3, 64, 96)
    results = ebcli.explain(net, inputs, target=2)
    assert [one.heatmap().shape for one in results] == [(1, 64, 96)] * 3
    assert seen.count(inputs.shape) == 1  # one batch
    layer = ebcli.default_layer(net, (64, 96))
    expected = ebcli.excitation_backprop(net, inputs, 2, layer, contrastive=True)
    np.testing.assert_allclose(np.stack([one.maps[0] for one in results]), expected.maps, atol=1e-6)
    assert [one.training for one in net.modules()] == modes
    assert len(net._forward_hooks) == hooks
    assert {name: value.stride() for name, value in net.named_parameters()} == strides
    for name, value in net.state_dict().items():
        assert torch.equal(value, state[name])
    assert repr(results[0]).endswith(f"; ResNet (in memory), layer {layer}, contrastive EB>")


@pytest.mark.release
def test_it_sees_what_the_same_network_sees_by_name() -> None:
    bundled, photo = ebcli.load_model(), "sample_images/coffee.jpg"
    by_name = ebcli.explain("efficientnet_lite0", photo, "cup")
    module = ebcli.explain(
        bundled.net, photo, "cup", transform=bundled.transforms, class_names=bundled.categories
    )
    np.testing.assert_allclose(module.maps, by_name.maps, atol=1e-6)
    assert module.scores == pytest.approx(by_name.scores)
    loaded = ebcli.explain(bundled, photo, "cup")
    np.testing.assert_allclose(loaded.maps, by_name.maps, atol=1e-6)
    assert loaded.scores == pytest.approx(by_name.scores)
    with_fit = ebcli.explain(bundled, photo, "cup", fit="crop")
    assert with_fit.maps.shape == (1, 14, 14) != by_name.maps.shape


@pytest.mark.parametrize(
    ("transform", "seen"),
    [
        (v2.Compose([v2.Resize(32), v2.CenterCrop(32), TO_32]), (30, 0, 90, 60)),
        (v2.Compose([v2.Resize((32, 48)), TO_32]), (0, 0, 120, 60)),
        (v2.Compose([lambda image: v2.functional.crop(image, 10, 60, 48, 48), TO_32]), (60, 10, 108, 58)),
        (v2.Compose([v2.Pad((0, 30), 128), TO_32, v2.Normalize((0.5,) * 3, (0.2,) * 3)]), (0, -30, 120, 90)),
        (lambda image: TO_32(image).mul(2).sub(0.3), (0, 0, 120, 60)),
    ],
    ids=["crop", "squash", "left", "pad", "function"],
)
def test_maps_lie_where_any_transform_looks(transform: Callable[..., Any], seen: tuple[int, ...]) -> None:
    net = color_net()
    found = ebcli.explain(
        net, PHOTO, "red", layer="input", transform=transform, class_names=NAMES, contrastive=False
    )
    assert found.explanation.maps[0].placement == pytest.approx(seen, abs=0.8)
    assert found.heatmap().shape == (1, 60, 120) == np.asarray(found).shape
    if "0.5" not in repr(transform) and seen != (0, 0, 120, 60):  # gray borders are red, too
        assert inside(found) > 0.95
    outside = found.heatmap()[0].copy()
    outside[max(0, seen[1]) : seen[3], max(0, seen[0]) : seen[2]] = 0
    assert not outside.any()
    assert ebcli.load_model(net, transform=transform).transforms(PHOTO).shape == (3, 32, 32)


def test_transforms_whose_place_is_unknown_are_refused() -> None:
    shaken = v2.Compose([v2.RandomCrop(40), TO_32])
    rotated = v2.Compose([lambda image: image.rotate(30), TO_32])
    for transform in (shaken, rotated, v2.Compose([v2.RandomHorizontalFlip(1.0), TO_32])):
        with pytest.raises(ebcli.ConfigurationError, match="maps have no place in it: pass the tensor"):
            ebcli.explain(color_net(), PHOTO, 0, layer="input", transform=transform)
    for transform, said in (
        (lambda image: image, "returns a Image"),
        (lambda _: torch.zeros(1, 3, 9, 9), "shape"),
    ):
        with pytest.raises(ebcli.ConfigurationError, match=f"transform returns .*{said}|{said}"):
            ebcli.explain(color_net(), PHOTO, 0, transform=transform)


def test_images_come_in_any_form(tmp_path: Path) -> None:
    PHOTO.save(tmp_path / "photo.png")
    pixels, server, content = np.asarray(PHOTO), Server(), io.BytesIO()
    PHOTO.save(content, "png")
    server.answers["/photo.png"] = content.getvalue()
    tensor = torch.from_numpy(pixels.copy()).movedim(-1, 0)
    content.seek(0)
    loaded = ebcli.load_model(color_net(), transform=v2.Compose([TO_32]), class_names=NAMES)
    preset = ebcli.load_model(
        color_net(),
        preprocessing=ebcli.Preprocessing(resize=32, crop=32, mean=0, std=1),
        transform=preset_of(32),
    )
    forms = [tmp_path / "photo.png", str(tmp_path / "photo.png"), f"{server.url}/photo.png", content]
    try:
        for model in (loaded, preset):
            expected = ebcli.explain(model, PHOTO, 0, layer="input")
            for number, image in enumerate(
                [*forms, pixels, tensor, pixels / 255, (pixels / 255).astype(np.float32)]
            ):
                content.seek(0)
                found = ebcli.explain(model, image, 0, layer="input")
                close = 0.02 * expected.maps.max()
                np.testing.assert_allclose(found.maps, expected.maps, atol=close, err_msg=str(number))
                assert found.photo.image.size == PHOTO.size
    finally:
        server.close()
    gray = ebcli.explain(loaded, pixels[..., 0], 1, layer="input", contrastive=False)
    assert inside(gray) > 0.95


def preset_of(side: int) -> Any:
    from torchvision.transforms._presets import ImageClassification

    return ImageClassification(crop_size=side, resize_size=side)


def test_a_batch_is_a_list_and_sizes_may_differ() -> None:
    shapes: list[int] = []
    net = color_net()
    net.register_forward_hook(lambda _net, args, _output: shapes.append(len(args[0])))
    wide, tall = np.asarray(PHOTO), np.asarray(PHOTO.rotate(90, expand=True))
    results = ebcli.explain(net, [wide, tall, wide, wide], 0, transform=TO_32, layer="input")
    assert [one.heatmap().shape for one in results] == [
        (1, 60, 120),
        (1, 120, 60),
        (1, 60, 120),
        (1, 60, 120),
    ]
    assert shapes[-1] == 4
    assert [inside(results[i]) > 0.9 for i in (0, 2, 3)] == [True] * 3
    assert len(ebcli.explain(net, np.stack([wide, wide]), 0, transform=TO_32)) == 2
    inputs = [torch.rand(3, 24, 24), torch.rand(3, 24, 40), torch.rand(3, 24, 24)]
    assert [one.heatmap().shape[1:] for one in ebcli.explain(net, inputs, 0)] == [
        (24, 24),
        (24, 40),
        (24, 24),
    ]
    assert ebcli.explain(net, []) == []


def test_layers_can_be_modules_and_functions_need_one() -> None:
    net, x = models.resnet18(num_classes=4).eval(), torch.rand(1, 3, 64, 64)
    named = ebcli.explain(net, x, 1, layer=["layer2", "layer3"])[0]
    by_module = ebcli.explain(net, x, 1, layer=[net.layer2, net.layer3])[0]
    np.testing.assert_array_equal(named.heatmap(), by_module.heatmap())

    def logits(images: torch.Tensor) -> torch.Tensor:
        return net(images) * 2

    found = ebcli.explain(logits, x, 1, layer=net.layer3)[0]
    np.testing.assert_allclose(found.maps[0], by_module.explanation.by_layer["layer3"][0].values, atol=1e-6)
    assert found.about == "logits (in memory), layer Sequential_1, contrastive EB"
    with pytest.raises(ebcli.LayerError, match="this Linear is not a module of the network"):
        ebcli.explain(net, x, layer=nn.Linear(2, 2))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", ["model", "pipeline"])
def test_models_and_pipelines_of_hugging_face(kind: str) -> None:
    config = transformers.ViTConfig(
        **{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64},
        **{"image_size": 32, "patch_size": 4, "id2label": dict(enumerate(NAMES)), "label2id": {}},
    )
    net = transformers.ViTForImageClassification(config).train()
    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32})
    if kind == "pipeline":
        given: Any = transformers.pipeline("image-classification", model=net, image_processor=processor)
        found, mode = ebcli.explain(given, PHOTO, target="green"), False
    else:
        found, mode = ebcli.explain(net, PHOTO, target="green", transform=processor), True
    assert found.classes == ["green"]
    inputs = processor(PHOTO, return_tensors="pt")["pixel_values"]
    assert found.scores == pytest.approx(net.eval()(inputs).logits.softmax(-1)[0, [1]].tolist(), abs=0.02)
    assert hasattr(net(inputs), "logits")  # its own output, as before
    assert mode or not net.training
    assert ebcli.explain(net, inputs, "green")[0].scores == pytest.approx(found.scores, abs=0.02)


def test_the_numbers_of_a_result() -> None:
    found = ebcli.explain(
        color_net(), PHOTO, ["red", "green"], layer="input", transform=TO_32, class_names=NAMES
    )
    assert found.mass == [None, None]
    marginal = ebcli.explain(
        color_net(),
        PHOTO,
        ["red", "green"],
        layer="input",
        transform=TO_32,
        class_names=NAMES,
        contrastive=False,
    )
    assert marginal.mass == pytest.approx([1, 1])
    assert all(0 < strength <= 1 for strength in found.strength if strength is not None)
    assert found.evidence == [one.evidence for one in found.explanation.maps]
    (left, top, right, bottom), _ = found.boxes()
    assert (left, top, right, bottom) == pytest.approx(WHERE, abs=5)
    assert found.heatmap((60, 30)).shape == (2, 30, 60)
    small, whole = found.heatmap((60, 30))[0], found.heatmap()[0]
    assert np.corrcoef(small.ravel(), whole.reshape(30, 2, 60, 2).mean((1, 3)).ravel())[0, 1] > 0.95
    assert np.asarray(found, np.float64).dtype == np.float64


def test_save_takes_every_style(tmp_path: Path) -> None:
    found = ebcli.explain(color_net(), PHOTO, 0, layer="input", transform=TO_32, against=1)
    pictures = set()
    for style in STYLES:
        found.save(tmp_path / f"{style}.png", style=style)
        pictures.add((tmp_path / f"{style}.png").read_bytes())
    assert len(pictures) == len(STYLES)
    with pytest.raises(ebcli.ConfigurationError, match="the style mask needs transparency, which jpg lacks"):
        found.save(tmp_path / "mask.jpeg", style="mask")
    with pytest.raises(ebcli.ConfigurationError, match="unknown style 'oil'"):
        found.save(tmp_path / "oil.png", style="oil")


def test_notebooks_show_a_tab_for_each_class_and_the_value_under_the_pointer(
    tmp_path: Path, browser: Any
) -> None:
    found = ebcli.explain(
        color_net(), PHOTO, ["red", "green"], layer="input", transform=TO_32, class_names=NAMES
    )
    (tmp_path / "page.html").write_text(found._repr_html_(), encoding="utf-8")
    browser.visit((tmp_path / "page.html").as_uri())
    first, second = browser.all("figure")
    assert [one.is_displayed() for one in (first, second)] == [True, False]
    browser.all("label")[1].click()
    assert [one.is_displayed() for one in (first, second)] == [False, True]
    browser.all("label")[0].click()
    values = {}
    for name, (x, y) in {"peak": (80, 35), "elsewhere": (10, 10)}.items():
        browser.run(
            "const [image, x, y] = arguments, box = image.getBoundingClientRect();"
            "image.dispatchEvent(new PointerEvent('pointermove', {bubbles: true, clientX: box.left + x * box.width,"
            "clientY: box.top + y * box.height}))",
            browser.all("figure img")[0],
            x / 120,
            y / 60,
        )
        values[name] = browser.all("output")[0].text
    cell = found.explanation.maps[0].values[35 * 32 // 60, 80 * 32 // 120] * 32 * 32
    assert float(values["peak"].partition(" ")[0]) == pytest.approx(cell, rel=0.01)
    assert values["elsewhere"] == "0.00 (1 is an even share)"


def test_no_text_is_a_script_in_notebooks(tmp_path: Path, browser: Any) -> None:
    """Names of classes, layers and columns; a notebook has no content security policy."""
    texts = [text.replace(".", "") for text in (*HOSTILE, *CLOSING)]
    net = nn.Sequential(OrderedDict(zip(texts, color_net(), strict=False)))
    table = torch.ones(1, 3)
    cells = []
    for names in (texts[:3], texts[3:6], texts[6:]):
        view = ebcli.explain(net, PHOTO, names, layer=texts[1:3], transform=TO_32, class_names=names)
        of_table = ebcli.explain(
            RedAndTable(), (torch.ones(1, 3, 8, 8), table), 0, layer="input:table", columns=names
        )[0]
        cells += [view._repr_html_(), of_table._repr_html_()]
    (tmp_path / "page.html").write_text("".join(cells), encoding="utf-8")
    browser.visit((tmp_path / "page.html").as_uri())
    assert len(browser.all("label")) == 18
    assert_harmless(browser)


@pytest.mark.parametrize(
    ("model", "image", "options", "said"),
    [
        (3, PHOTO, {}, "model is 3, but a name, a LoadedModel, a torch.nn.Module"),
        (len, torch.rand(3, 9, 9), {}, "len returned values of shape .. for 1 image: return a row of logits"),
        (means, torch.rand(3, 9, 9), {}, "choose --method occlusion or rise, or pass a module that it calls"),
        (means, PHOTO, {}, "the preprocessing of means is unknown: pass transform="),
        ("net", PHOTO, {}, "the preprocessing of Sequential is unknown: pass transform="),
        ("net", torch.rand(3, 9, 9), {"fit": "crop"}, "as it is: drop fit"),
        ("net", PHOTO, {"fit": "crop", "transform": TO_32}, "transform says how images are fitted: drop fit"),
        ("net", [PHOTO, torch.rand(3, 9, 9)], {"transform": TO_32}, "pass them in two calls"),
        (
            "net",
            np.full((9, 9, 3), 200.0),
            {"transform": TO_32},
            "image 1 of 1: it is float64 with values up to 200",
        ),
        ("net", PHOTO, {"transform": TO_32, "target": "redd", "class_names": NAMES}, "did you mean 'red'"),
        (
            "net",
            PHOTO,
            {"transform": TO_32, "class_names": NAMES[:2]},
            "there are 2 class names, but .* 3 outputs",
        ),
        ("net", PHOTO, {"transform": 3}, "transform is 3"),
        ("resnet18", PHOTO, {"transform": TO_32}, "resnet18 has its own preprocessing"),
        ("net", ["nowhere.png"], {"transform": TO_32}, "'nowhere.png': no such file"),
    ],
)
def test_what_does_not_fit_is_told_in_a_sentence(
    model: Any, image: Any, options: dict[str, Any], said: str
) -> None:
    given = color_net() if model == "net" else model
    with pytest.raises(ebcli.EbcliError, match=f"(?i){said}") as caught:
        if model == "resnet18":
            ebcli.load_model(model, "none", **options)
        else:
            ebcli.explain(given, image, **options)
    assert not re.search("\n", str(caught.value))
