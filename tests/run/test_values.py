"""Numbers instead of classes: of networks whose weights are set by hand, so that value and map are known."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import value_nets
from click.testing import CliRunner, Result
from color_net import painted
from PIL import Image

import ebcli
from ebcli.cli.saliency import main
from ebcli.errors import ConfigurationError
from ebcli.files.records import read_records

RED, BLUE = (40, 8, 56, 24), (8, 32, 24, 56)  # squares of 64 x 64 pixels: 1/16 and 3/32 of them
PHOTO = painted((64, 64), ((255, 0, 0), RED), ((0, 0, 255), BLUE))
VALUE = 40 / 16 - 20 * 3 / 32 + 10


@pytest.fixture(autouse=True)
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    PHOTO.save("a.png")


def pixels() -> torch.Tensor:
    """What a network gets of the photo."""
    return torch.from_numpy(np.asarray(PHOTO).copy()).movedim(2, 0).float() / 255


def invoke(name: str, *arguments: str) -> Result:
    model = ("--model", f"{value_nets.__file__}:{name}", "--layer", "cells")
    return CliRunner().invoke(main, ["a.png", *model, "--workers", "0", "--overwrite", *arguments])


def run(name: str, *arguments: str) -> list[Any]:
    """The record of each map."""
    result = invoke(name, "--json", *arguments)
    assert result.exit_code == 0, result.output
    return [SimpleNamespace(**values) for values in json.loads(result.stdout)["classes"]]


def share(map_: np.ndarray, square: tuple[int, ...]) -> float:
    """The share of a map in a square."""
    left, top, right, bottom = (side * map_.shape[1] // 64 for side in square)
    return float(map_[top:bottom, left:right].sum() / map_.sum())


def test_a_single_output_is_a_value_that_the_map_says_what_raises() -> None:
    (record,) = run("Ripeness")
    assert (record.name, record.score, record.value) == ("value", None, pytest.approx(VALUE))
    found = ebcli.explain(value_nets.Ripeness().eval(), pixels(), layer="cells")
    assert repr(found).startswith(f"<Saliency of value {VALUE:.4g}; Ripeness")
    assert (found.classes, found.scores) == (["value"], [pytest.approx(VALUE)])
    assert share(found.maps[0].clip(0), RED) == pytest.approx(1)
    assert share(found.maps[0].clip(max=0), BLUE) == pytest.approx(1)


def test_a_signed_picture_also_shows_what_lowers_it() -> None:
    def differs(square: tuple[int, ...], *arguments: str) -> bool:
        """Whether a square is drawn over."""
        result = invoke("Ripeness", "-o", "out.png", *arguments)
        assert result.exit_code == 0, result.output
        left, top, right, bottom = square
        center = (left + right) // 2, (top + bottom) // 2
        return Image.open("out.png").convert("RGB").getpixel(center) != PHOTO.getpixel(center)

    assert (differs(RED), differs(BLUE)) == (True, False)
    assert (differs(RED, "--signed"), differs(BLUE, "--signed")) == (True, True)


def test_messages_and_picture_facts_say_value_not_class() -> None:
    result = invoke("Ripeness", "-v", "-o", "out.png")
    assert f"a.png: value {VALUE:.4g}, " in result.stderr
    assert "class" not in result.stderr
    facts = CliRunner().invoke(main, ["info", "out.png"])
    assert re.search(rf"^value: +{VALUE:.6g}$", facts.output, re.MULTILINE), facts.output
    assert "score" not in facts.output and "class" not in facts.output


@pytest.mark.parametrize("scores", ["raw", None])
def test_several_values_are_outputs_with_names(scores: str | None) -> None:
    expected = [VALUE, 0, 5 * 3 / 32 + 1]
    name, options = ("three", ("--scores", "raw")) if scores else ("declared", ())
    names = ["output 0", "output 1", "output 2"] if scores else ["red", "green", "blue"]
    records = run(name, *options)
    assert [record.name for record in records] == names
    assert [record.value for record in records] == pytest.approx(expected)
    found = ebcli.explain(getattr(value_nets, name)().eval(), pixels(), layer="cells", scores=scores)
    assert (found.classes, found.scores) == (names, pytest.approx(expected))
    Path("names.txt").write_text("age\nheight\nweight\n")
    records = run(name, *options, "--class-names", "names.txt", "--target", "weight", "--target", "age")
    assert [(record.name, record.value) for record in records] == [
        ("weight", pytest.approx(expected[2])),
        ("age", pytest.approx(expected[0])),
    ]
    # of several, the largest
    assert [record.value for record in run(name, *options, "--top-k", "1")] == [pytest.approx(VALUE)]


def test_probabilities_stay_where_they_are_asked_for() -> None:
    (record,) = run("Ripeness", "--scores", "sigmoid")
    assert (record.value, record.score) == (None, pytest.approx(1 / (1 + np.exp(-VALUE))))
    (record,) = run("three")
    assert record.value is None and record.score < 1
    assert ebcli.load_model(value_nets.three(), scores="sigmoid").task == "classification"
    with pytest.raises(ConfigurationError, match="Ripeness has a single output, whose softmax is always 1"):
        ebcli.load_model(value_nets.Ripeness(), scores="softmax")


def test_raw_outputs_of_named_classes_are_values_of_classes() -> None:
    """They keep the classifier's options, such as the most likely class."""
    loaded = ebcli.load_model("efficientnet_lite0", scores="raw")
    found = ebcli.explain(loaded, PHOTO)
    with torch.no_grad():
        logits = loaded.net(
            loaded.with_preprocessing(ebcli.Preprocessing(fit="whole")).transforms(PHOTO)[None]
        )
    assert loaded.task == "classification"
    assert found.scores == [pytest.approx(float(logits.max()), rel=1e-3)]
    assert f", value {found.scores[0]:.4g};" in repr(found)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_map_of_values_is_explained_as_its_mean(sign: int) -> None:
    """As a network that returns this mean itself, whether it is positive or negative."""
    maps, mean = value_nets.Heights().eval(), value_nets.MeanHeight().eval()
    for net in (maps, mean):
        net.head.weight.data *= sign
    images = pixels() + 0.1 * torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(0))
    for contrastive in (True, False):
        options = {"layer": "cells", "contrastive": contrastive}
        found = ebcli.explain(maps, images, scores="raw", **options)
        expected = ebcli.explain(mean, images, **options)
        assert np.sign(found.scores[0]) == sign
        assert found.scores == pytest.approx(expected.scores, rel=1e-5)
        np.testing.assert_allclose(found.maps, expected.maps, atol=1e-7)


def test_a_place_of_a_map_of_values_has_its_own_value() -> None:
    (record,) = run("Heights", "--scores", "raw", "--where", "48,16")
    assert (record.name, record.value, record.score) == ("value", pytest.approx(40), None)
    (record,) = run("Heights", "--scores", "raw", "--where", "16,44")
    assert record.value == pytest.approx(-20)
    net = value_nets.Heights().eval()
    found = ebcli.explain(net, pixels(), layer="cells", scores="raw", where=(48, 16), contrastive=False)
    assert found.scores == [pytest.approx(40)]
    # the 3 x 3 cells around that at row 4, column 12
    assert np.argwhere(found.maps[0] > 0).tolist() == [[y, x] for y in (3, 4, 5) for x in (11, 12, 13)]
    np.testing.assert_allclose(found.maps[0][3:6, 11:14], 1 / 9, rtol=1e-5)
    painted((64, 64), ((255, 255, 255), (44, 12, 52, 20))).save("mask.png")
    (record,) = run("Heights", "--scores", "raw", "--where", "mask.png")
    assert record.value == pytest.approx(40)


@pytest.mark.parametrize(
    ("name", "options", "status", "said"),
    [
        ("Ripeness", ("--where", "3,3"), 2, "but .*:Ripeness is for values: drop it"),
        ("Ripeness", ("--labels", "folders"), 2, "--labels works only with classifiers"),
        ("Ripeness", ("--tiles", "2"), 2, "--tiles works only with classifiers"),
        ("Heights", ("--scores", "raw", "--above", "0.1"), 2, "is for maps of values: drop it"),
        ("Heights", ("--scores", "raw", "--where", "90,3"), 1, "the pixel 90,3 is outside the image"),
    ],
)
def test_what_numbers_lack_is_refused_in_one_sentence(
    name: str, options: tuple[str, ...], status: int, said: str
) -> None:
    result = invoke(name, *options)
    assert result.exit_code == status
    assert re.search(said, result.stderr)


def test_records_of_values_are_read_again() -> None:
    result = invoke("Ripeness", "-o", "maps")
    assert result.exit_code == 0, result.output
    (record,) = read_records(Path("maps"))
    (class_,) = record.classes
    assert (class_.label, class_.score_words) == ("value", f"value {VALUE:.4g}")
