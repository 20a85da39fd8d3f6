"""--layer best: each method at its best layer, which photos that are not measured choose."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from color_net import GREEN, RED, color_net, load_colors, painted
from torch import Tensor, nn
from torchvision.models import VisionTransformer, resnet18

from ebcli.cli.benchmark import benchmark as main
from ebcli.evaluate.best_layer import LayerChoice, candidate_layers, half_of
from ebcli.models import LoadedModel, load_model
from ebcli.models.network_layers import as_loaded

SIZE = (448, 224)
LEFT, RIGHT = (0, 0, 112, 224), (336, 112, 448, 224)


class Roll(nn.Module):
    """Moves the picture to the other side, which the mean over it does not notice."""

    def forward(self, images: Tensor) -> Tensor:
        return images.roll(images.shape[3] // 2, 3)


def rolling(*, is_input_rolled: bool) -> LoadedModel:
    """The network of colors, in which some layers are rolled: all but the first one, or those before the last two."""
    pixels, *_, pool, flatten, classifier = color_net()
    blocks = [Roll(), pixels] if is_input_rolled else [pixels]
    net = nn.Sequential(*blocks, Roll(), nn.ReLU(), pool, flatten, classifier).eval()
    return replace(load_colors(), net=net)


@pytest.fixture
def data(tmp_path: Path) -> tuple[Path, Path]:
    """Four photos with a colored rectangle, and a CSV file of their boxes."""
    folder = tmp_path / "photos"
    folder.mkdir()
    lines = ["image,class,left,top,right,bottom"]
    for index in range(4):
        color, name = ((RED, "red"), (GREEN, "green"))[index % 2]
        box = (LEFT, RIGHT)[index // 2]
        painted(SIZE, (color, box)).save(folder / f"{index}.png")
        lines.append(f"{index}.png,{name},{','.join(map(str, box))}")
    (tmp_path / "boxes.csv").write_text("\n".join(lines))
    return folder, tmp_path / "boxes.csv"


def measure(monkeypatch: pytest.MonkeyPatch, loaded: LoadedModel, *arguments: object) -> Result:
    monkeypatch.setattr("ebcli.evaluate.benchmark.load_model", lambda **_: loaded)
    monkeypatch.setattr("ebcli.models.load_model", lambda **_: loaded)
    return CliRunner().invoke(main, [*map(str, arguments), "--model", "colors", "--json"])


def rows_of(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("is_input_rolled", "right"), [(False, ["0"]), (True, ["2", "3"])])
def test_the_layer_that_is_right_is_chosen(
    is_input_rolled: bool,
    right: list[str],
    data: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    loaded = rolling(is_input_rolled=is_input_rolled)
    methods = "--method", "marginal", "--method", "grad-cam", "--method", "center"
    arguments = "localize", *data, *methods, "-o", tmp_path / "kept"
    rows = rows_of(measure(monkeypatch, loaded, *arguments, "--layer", "best"))
    assert [row["method"] for row in rows] == ["marginal", "grad-cam", "center"]
    for row in rows[:2]:
        assert row["layer"] in right
        assert row["equal area"] == pytest.approx(1, abs=0.03)
        assert row["best IoU"] == pytest.approx(1, abs=0.05)
        assert (row["chosen on"], row["photos"], row["questions"]) == (2, 2, 2)
        low, high = row["equal area, 95%"]
        assert low <= row["equal area"] <= high
    assert (rows[2]["layer"], rows[2]["chosen on"]) == ("-", None)
    named = rows_of(
        measure(monkeypatch, loaded, *arguments, "--layer", "best", "--layer", right[0], "--layer", "1")
    )
    assert [row["layer"] for row in named] == [right[0], right[0], "-"]
    wrong = rows_of(measure(monkeypatch, loaded, *arguments, "--layer", "1"))
    assert max(row["equal area"] for row in wrong if row["method"] != "center") < 0.5
    assert "chosen on" not in wrong[0]


def test_photos_that_choose_are_not_measured() -> None:
    rows = [
        {"method": method, "layer": layer, "image": image, "score": score}
        for method, layer, image, score in [
            ("a", "1", "x", 0.9), ("a", "1", "y", 0.1),
            ("a", "2", "x", 0.2), ("a", "2", "y", 0.8),
            ("b", "1", "x", 0.3), ("b", "1", "y", 0.4),
            ("b", "2", "x", 0.6), ("b", "2", "y", 0.5),
        ]
    ]  # fmt: skip
    selected = LayerChoice("score", {"x"}).select(rows)
    assert [(row["method"], row["layer"], row["image"], row["chosen on"]) for row in selected] == [
        ("a", "1", "y", 1),  # although the other layer is better there
        ("b", "2", "y", 1),
    ]


def test_half_of_the_photos_is_always_the_same_half() -> None:
    names = [f"{index}.jpg" for index in range(9)]
    half = half_of(names)
    assert len(half) == 4
    assert half == half_of(names[::-1])
    assert half != {*names[:4]}


def test_mosaics_that_choose_need_other_photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    for index in range(24):
        painted((32, 32), ((RED, GREEN, (0, 0, 255))[index % 3], (0, 0, 32, 32))).save(
            folder / f"{index}.png"
        )
    arguments = "grid", folder, "-o", tmp_path / "kept", "--mosaics", "6", "--confidence", "0"
    refused = measure(monkeypatch, rolling(is_input_rolled=False), *arguments, "--layer", "best")
    assert "of 4 classes in each half of the photos recognized" in refused.stderr


def test_candidates_are_the_outermost_blocks() -> None:
    lite = load_model("efficientnet_lite0", "none")
    assert candidate_layers(lite) == [f"features.{index}" for index in range(18)]
    residual = candidate_layers(as_loaded(resnet18().eval(), (64, 64)))
    assert {"relu", "maxpool", "layer1.0", "layer4.1"} <= {*residual}
    assert not any(name.startswith("layer1.0.") for name in residual)


def test_candidates_of_a_transformer_are_its_blocks() -> None:
    torch.manual_seed(0)
    net = VisionTransformer(64, 16, 4, 2, hidden_dim=16, mlp_dim=32, num_classes=3).eval()
    names = candidate_layers(as_loaded(net, (64, 64)))
    assert {f"encoder.layers.encoder_layer_{index}" for index in range(3)} <= {*names}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["localize", "photos", "boxes.csv", "--layer", "best", "--limit", "1"], "needs two photos or more"),
        (["sanity", "photos", "--layer", "best"], "--layer best does not work with sanity: name the layers"),
    ],
)
def test_wrong_uses_are_refused(
    arguments: list[str], message: str, data: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(data[0].parent)
    result = measure(monkeypatch, rolling(is_input_rolled=False), *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
