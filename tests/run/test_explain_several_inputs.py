"""Networks with several inputs from Python: shares and columns against closed forms."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from several_inputs import Difference, RedAndTable
from torch import Tensor, nn

import ebcli
from ebcli.cli.saliency import main
from ebcli.errors import ConfigurationError, EbcliError
from ebcli.files.records import Record

COLUMNS = ["age", "dose", "weight"]
TABLE = torch.tensor([0.5, 0.2, 0.1])


def picture(value: float = 0.4) -> Tensor:
    """A picture of which the left third is red."""
    image = torch.zeros(3, 12, 18)
    image[0, :, :6] = value
    return image


PHOTO = Image.new("RGB", (18, 12), "red")


def shares(image: Tensor, table: Tensor) -> dict[str, float]:
    """The shares of the inputs in the positive terms of class 0."""
    terms = {"image": float(3 * image[0].mean()), "table": float(2 * table[0] + 5 * table[1])}
    return {name: value / sum(terms.values()) for name, value in terms.items()}


def explain(inputs: Any, *classes: int, **options: Any) -> Any:
    return ebcli.explain(RedAndTable(), inputs, *classes, layer="act", **options)


def test_each_input_has_its_part_of_the_terms() -> None:
    found = explain((picture(), TABLE), 0, columns=COLUMNS, contrastive=False)
    assert found.inputs == [pytest.approx(shares(picture(), TABLE))]
    assert found.columns[0]["table"] == pytest.approx({"age": 1 / 2.4, "dose": 1 / 2.4, "weight": 0})
    assert found.mass == [pytest.approx(found.inputs[0]["image"])]
    assert found.maps[0, :, 6:].max() == 0 < found.maps[0, :, :6].min()
    assert "image 17%, table 83% of the evidence" in repr(found)


def test_columns_against_a_class_are_negative_and_last() -> None:
    found = explain((picture(), TABLE), 0, columns=COLUMNS)
    # the dual's only positive term is that of the third column
    assert found.columns[0]["table"] == pytest.approx({"age": 1 / 2.4, "dose": 1 / 2.4, "weight": -1})
    assert [*found.columns[0]["table"]][-1] == "weight"
    assert found.inputs == [pytest.approx(shares(picture(), TABLE))]  # these are marginal


def test_rows_of_a_batch_have_shares_of_their_own() -> None:
    images = torch.stack([picture(), picture(0.8), picture(0.1)])
    tables = torch.stack([TABLE, TABLE / 4, TABLE * 3])
    by_order = explain((images, tables), 0)
    by_name = explain({"table": tables, "image": images}, [0, 1])
    assert [found.inputs[0] for found in by_order] == [
        pytest.approx(shares(image, table)) for image, table in zip(images, tables, strict=True)
    ]
    for first, second in zip(by_order, by_name, strict=True):
        np.testing.assert_array_equal(first.maps[0], second.maps[0])
        assert first.inputs[0] == pytest.approx(second.inputs[0])
        assert second.inputs[1] == pytest.approx({"table": 1, "image": 0})
    assert by_order[0].columns[0]["table"].keys() == {"0", "1", "2"}  # without names


def test_it_agrees_with_the_engine() -> None:
    net = RedAndTable()
    found = ebcli.explain(net, (picture()[None], TABLE[None]), 0, layer="act")
    result = ebcli.excitation_backprop(net, (picture()[None], TABLE[None]), 0, "act", contrastive=True)
    np.testing.assert_allclose(found[0].maps[0], result.maps[0], atol=1e-6)
    assert net.training
    assert net.act.training


class WithCategory(RedAndTable):
    """The same with a whole number that scales the columns."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Embedding(2, 3)
        nn.init.constant_(self.scale.weight, 1.0)

    def forward(self, image: Tensor, table: Tensor, category: Tensor | None = None) -> Any:
        assert category is not None
        assert not self.training
        return super().forward(image, table * self.scale(category))


def test_whole_numbers_have_no_share() -> None:
    inputs = (picture(), TABLE, torch.tensor(1))
    found = ebcli.explain(WithCategory(), inputs, 0, layer="act")
    assert found.inputs == [pytest.approx(shares(picture(), TABLE))]


def test_a_function_of_several_inputs() -> None:
    net = RedAndTable().eval()

    def logits(image: Tensor, table: Tensor) -> Any:
        return 2 * net(image, table)

    found = ebcli.explain(logits, (picture(), TABLE), 0, layer=net.act)
    assert found.inputs == [pytest.approx(shares(picture(), TABLE))]


def test_pictures_in_a_tuple_stay_several_pictures() -> None:
    net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 12 * 18, 2))
    first, second = ebcli.explain(net, (picture(), picture(0.8)), 0, layer="1")
    assert first.inputs == second.inputs == [{}]


@pytest.mark.parametrize(
    ("inputs", "options", "sentence"),
    [
        (
            (picture()[None], TABLE.expand(2, 3)),
            {},
            r"number of images \(image 1, table 2\): pass a row of each",
        ),
        ((picture(), TABLE), {"columns": ["age"]}, "columns has 1 name, but table has 3 columns"),
        (
            (picture(), TABLE),
            {"columns": {"tabel": COLUMNS}},
            "columns name the input 'tabel', which is no table",
        ),
        (picture(), {"columns": COLUMNS}, "columns are those of tables: pass a tuple of all inputs"),
        ((picture(), TABLE * torch.nan), {}, "NaN or infinite"),
        ({}, {}, "no inputs given: pass at least one tensor"),
        ({"image": "photo.jpg", "table": TABLE}, {}, "'photo.jpg': No such file or directory"),
        (
            (picture(), ["a"]),
            {},
            r"the input table is \['a'\]: pass a tensor, an array or numbers, or an image",
        ),
        ((picture(), None), {}, "the input table is None: pass a tensor"),
        ((["a.png"] * 2, TABLE.expand(2, 3)), {}, r"the input image is \['a.png', 'a.png'\]: pass a tensor"),
        (
            ([PHOTO] * 2, TABLE.expand(2, 3)),
            {},
            "the input image has 4 axes, but is no tensor: pass one image, or a tensor of preprocessed ones",
        ),
        ((PHOTO, TABLE), {}, "the preprocessing of RedAndTable is unknown: pass transform="),
        ((picture(), TABLE), {"fit": "whole"}, "drop fit"),
    ],
)
def test_wrong_inputs_are_told_in_a_sentence(inputs: Any, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(EbcliError, match=sentence):
        explain(inputs, 0, **options)


def test_a_missing_input_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"missing 1 required positional argument: 'table'"):
        explain({"image": picture()}, 0)


def two_pictures() -> tuple[Tensor, Tensor]:
    """Green on the left before, red on the right after, each 6 of 18 columns wide, on gray."""
    before, after = torch.zeros(2, 3, 12, 18)
    before[1, :, :6] = 0.9
    after[0, :, 12:] = 0.9
    return before, after


def test_each_of_two_pictures_has_its_map() -> None:
    found = ebcli.explain(Difference(), two_pictures(), 0)
    (map_,) = found.explanation.maps
    assert map_.layer == "input"
    # the terms of change are as 1 to 3; the dual has none
    assert map_.inputs == pytest.approx({"before": 0.25, "after": 0.75})
    (other,) = map_.pictures
    assert (other.name, other.share) == ("after", pytest.approx(0.75))
    assert map_.values[:, :6].sum() == pytest.approx(0.25)
    assert other.values[:, 12:].sum() == pytest.approx(0.75)
    assert np.abs(map_.values).sum() + np.abs(other.values).sum() == pytest.approx(1)
    assert map_.strength == pytest.approx(1)  # of both
    np.testing.assert_array_equal(other.pixels[6, [0, 15]], [[0, 0, 0], [230, 0, 0]])


def test_two_pictures_are_drawn_side_by_side_on_one_scale() -> None:
    found = ebcli.explain(Difference(), two_pictures(), 0, style="heatmap")
    drawn = np.asarray(found.picture.convert("RGB"), float)
    assert drawn.shape[0] == 12
    assert drawn.shape[1] > 36  # with a gap
    first, second = drawn[6, :18], drawn[6, -18:]
    nothing = first[9]  # the color of 0
    np.testing.assert_array_equal(second[9], nothing)
    strong = np.abs(second[16] - nothing).sum()
    weak = np.abs(first[1] - nothing).sum()
    assert 0 < weak < strong
    alone = ebcli.explain(Difference(), two_pictures(), 0, style="heatmap", layer="colors")
    assert alone.picture.size == (18, 12)
    assert alone.inputs == [pytest.approx(found.inputs[0])]


def test_a_notebook_has_a_tab_for_each_picture() -> None:
    page = ebcli.explain(Difference(), two_pictures(), 0)._repr_html_()
    assert page.count("<figure") == 2
    assert "before 25%, after 75% of the evidence" in page
    assert "class 0, after" in page


FACTORIES = """
import torch
import ebcli
from several_inputs import Difference, RedAndTable

class Own(RedAndTable):
    preprocessing = ebcli.Preprocessing(resize=12, crop=12, mean=0, std=1)
    columns = ["age", "dose", "weight"]

    def other_inputs(self, path):
        if path is None:
            return torch.zeros(3)
        return {"red.png": torch.tensor([0.5, 0.2, 0.1]), "blue.png": [0.0, 0.2, 0.0]}[path.rpartition("/")[2]]

class ByName(Own):
    def other_inputs(self, path):
        return {"table": super().other_inputs(path)}

class NoExample(Own):
    def other_inputs(self, path):
        return {}[path]

class Pair(Difference):
    preprocessing = Own.preprocessing

    def other_inputs(self, path):
        after = torch.zeros(3, 12, 12)
        after[0, :, 6:] = 1
        return (after,)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own.py").write_text(FACTORIES)
    for color in ("red", "blue", "lime", "black"):
        Image.new("RGB", (12, 12), color).save(tmp_path / f"{color}.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def records(*arguments: str) -> list[dict[str, Any]]:
    done = CliRunner().invoke(main, [*arguments, "-o", "maps", "--json"])
    lines = done.stdout.splitlines()
    assert all(Record.parse(line.encode()) for line in lines)  # as later runs read them
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("factory", ["Own", "ByName"])
@pytest.mark.usefixtures("folder")
def test_a_factory_reads_its_other_inputs(factory: str) -> None:
    files = ["red.png", "blue.png", "black.png"]
    red, blue, black = records("--model", f"own.py:{factory}", "--layer", "act", "--target", "0", *files)
    # a term of 3 beside those of the table, 1 + 1, and none beside 1
    assert red["classes"][0]["inputs"] == pytest.approx({"image": 0.6, "table": 0.4})
    assert blue["classes"][0]["inputs"] == pytest.approx({"image": 0, "table": 1})
    assert red["classes"][0]["columns"]["table"] == pytest.approx({"age": 0.2, "dose": 0.2, "weight": -1})
    assert "other_inputs() failed (KeyError: 'black.png')" in black["error"]


@pytest.mark.usefixtures("folder")
def test_explain_has_what_the_command_has() -> None:
    found = ebcli.explain("own.py:Own", "red.png", 0, layer="act")
    assert found.inputs == [pytest.approx({"image": 0.6, "table": 0.4})]
    loaded = ebcli.load_model("own.py:Own")
    given = ebcli.explain(loaded, (torch.ones(3, 12, 12), torch.tensor([0.0, 0.6, 0.0])), 0, layer="act")
    assert given.inputs == [pytest.approx({"image": 0.5, "table": 0.5})]
    with pytest.raises(EbcliError, match="by the path of the picture, but this one has none: name a file"):
        ebcli.explain(loaded, Image.open("red.png"), 0, layer="act")


@pytest.mark.usefixtures("folder")
def test_a_factory_reads_a_second_picture() -> None:
    (record,) = records("--model", "own.py:Pair", "--target", "0", "--format", "png", "lime.png")
    assert record["layer"] == "input"
    # green everywhere, once, and red in half of the other picture, three times
    assert record["classes"][0]["inputs"] == pytest.approx({"before": 0.4, "after": 0.6})
    width, height = Image.open(record["output"][0]).size
    assert (width > 24, height) == (True, 12)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--model", "own.py:NoExample"],
            "other_inputs(None) failed (KeyError: None): for None, return an example",
        ),
        (
            ["--model", "own.py:Own", "--tiles", "12"],
            "the other inputs of own.py:Own belong to whole photos: drop it",
        ),
    ],
)
@pytest.mark.usefixtures("folder")
def test_wrong_factories_are_told_in_a_sentence(arguments: list[str], sentence: str) -> None:
    done = CliRunner().invoke(main, ["red.png", *arguments])
    assert done.exit_code == 2
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


TABLE_LAYERS = ["input:1", "input:table", "table"]


@pytest.mark.parametrize("layer", TABLE_LAYERS)
def test_the_map_at_a_table_has_a_value_for_each_column(layer: str) -> None:
    net = RedAndTable()
    for contrastive, last in ((False, 0), (True, -1)):  # the dual's only positive term
        options: dict[str, Any] = {"layer": layer, "contrastive": contrastive}
        found = ebcli.explain(net, (picture(), TABLE), 0, columns=COLUMNS, **options)
        assert found.maps[0] == pytest.approx([1 / 2.4, 1 / 2.4, last])
        assert found.columns[0]["table"] == pytest.approx(dict(zip(COLUMNS, found.maps[0], strict=True)))
        assert "layer input:table" in repr(found)
        result = ebcli.excitation_backprop(net, (picture()[None], TABLE[None]), 0, **options)
        np.testing.assert_allclose(result.relevance[0], found.maps[0], atol=1e-6)
    assert "class 0, table: age 0.417, dose 0.417, weight -1.000" in found._repr_html_()
    for draw in (lambda: found.picture, found.heatmap, found.boxes, found.regions):
        with pytest.raises(
            ConfigurationError, match="the map at 'input:table' is of no picture: take its values"
        ):
            draw()


@pytest.mark.parametrize("layer", TABLE_LAYERS[1:])
def test_the_map_at_a_table_in_a_mapping(layer: str) -> None:
    found = ebcli.explain(RedAndTable(), {"table": TABLE, "image": picture()}, 0, layer=layer)
    assert found.maps[0] == pytest.approx([1 / 2.4, 1 / 2.4, -1])
    for first in ("image", "input:image"):
        assert ebcli.explain(
            RedAndTable(), {"table": TABLE, "image": picture()}, 0, layer=first
        ).maps.shape == (1, 12, 18)


class Sequences(nn.Module):
    """A picture beside a sequence (B, 4, 3), of which step s and channel c count s + c."""

    def forward(self, image: Tensor, steps: Tensor) -> Any:
        weights = torch.arange(4.0)[:, None] + torch.arange(3.0)
        total = (steps * weights).sum((1, 2)) + image.mean((1, 2, 3))
        return torch.stack([total, -total], 1)


def test_the_map_at_a_sequence_has_its_shape() -> None:
    found = ebcli.explain(Sequences(), (picture() * 0, torch.ones(4, 3)), 0, layer="steps", contrastive=False)
    expected = np.add.outer(np.arange(4.0), np.arange(3.0))
    np.testing.assert_allclose(found.maps[0], expected / expected.sum(), atol=1e-6)


def test_the_map_at_a_second_picture_is_drawn_over_it() -> None:
    found = ebcli.explain(Difference(), two_pictures(), 0, layer="after", style="heatmap")
    (map_,) = found.explanation.maps
    assert (map_.layer, map_.pictures) == ("input:after", ())
    assert map_.values[:, 12:].sum() == pytest.approx(0.75)
    assert map_.values[:, :12].max() == 0
    assert found.photo.image.getpixel((15, 5)) == (230, 0, 0)
    assert found.picture.size == (18, 12)


class NamedAsAnInput(RedAndTable):
    """The same, but a module has the name of an input."""

    def __init__(self) -> None:
        super().__init__()
        del self.act
        self.table = nn.ReLU()

    def forward(self, image: Tensor, table: Tensor) -> Any:
        return self.head(torch.cat([self.table(self.red(image)).mean((2, 3)), table], 1))


def test_a_module_has_its_name_before_an_input() -> None:
    net = NamedAsAnInput()
    found = ebcli.explain(net, (picture(), TABLE), 0, layer="table")
    assert found.maps.shape == (1, 12, 18)
    found = ebcli.explain(net, (picture(), TABLE), 0, layer="input:table")
    assert found.maps.shape == (1, 3)


@pytest.mark.parametrize(
    ("layer", "sentence"),
    [
        ("input:2", "the network has no input '2': choose one of image, table"),
        ("input:tabel", "the network has no input 'tabel': choose one of image, table"),
        (["act", "table"], "layer 'input:table' has no map of the picture: ask for it alone"),
    ],
)
def test_wrong_inputs_as_layers_are_told_in_a_sentence(layer: Any, sentence: str) -> None:
    with pytest.raises(EbcliError, match=sentence):
        ebcli.explain(RedAndTable(), (picture(), TABLE), 0, layer=layer)
    with pytest.raises(EbcliError, match="the network has no input '1': choose one of image, table"):
        ebcli.explain(RedAndTable(), {"image": picture(), "table": TABLE}, 0, layer="input:1")
    net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 12 * 18, 2))
    with pytest.raises(EbcliError, match="Sequential has one input: use the layer 'input'"):
        ebcli.explain(net, picture(), 0, layer="input:1")


@pytest.mark.usefixtures("folder")
def test_the_command_says_where_a_table_has_its_map() -> None:
    for layer in ("input:1", "table"):
        done = CliRunner().invoke(main, ["red.png", "--model", "own.py:Own", "--layer", layer])
        assert done.exit_code == 2
        assert (
            "layer 'input:table' has no map of the photo, which is drawn here: use --layer input"
            in done.stderr
        )
    found = ebcli.explain("own.py:Own", "red.png", 0, layer="input:1", contrastive=False)
    assert found.maps[0] == pytest.approx([0.2, 0.2, 0])
    found = ebcli.explain("own.py:Pair", "lime.png", 0, layer="input:1")
    assert found.maps[0, :, 6:].sum() == pytest.approx(0.6)
    assert found.photo.image.getpixel((9, 6)) == (255, 0, 0)


def as_input(image: Image.Image) -> Tensor:
    """What the network gets of a photo."""
    return torch.from_numpy(np.array(image)).movedim(2, 0).float() / 255


PICTURES: dict[str, Any] = {
    "path": "red.png",
    "file": lambda: io.BytesIO(Path("red.png").read_bytes()),
    "Pillow": lambda: PHOTO,
    "8 bits": lambda: np.array(PHOTO),
    "0 to 1": lambda: np.array(PHOTO) / 255,
    "8 bits, channels first": lambda: torch.from_numpy(np.array(PHOTO)).movedim(2, 0),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", PICTURES)
@pytest.mark.parametrize(
    "row",
    [TABLE.tolist(), tuple(TABLE.tolist()), TABLE.double().numpy(), TABLE],
    ids=["list", "tuple", "array", "tensor"],
)
def test_the_picture_can_be_an_image_beside_numbers(
    kind: str, row: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    PHOTO.save("red.png")

    def image() -> Any:
        return "red.png" if kind == "path" else PICTURES[kind]()

    options: dict[str, Any] = {"transform": as_input, "columns": COLUMNS}
    expected = {"image": 0.6, "table": 0.4}  # terms of 3, 1 and 1
    for inputs in ((image(), row), {"table": row, "image": image()}):
        found = explain(inputs, 0, **options)
        assert found.inputs == [pytest.approx(expected)]
        assert found.columns[0]["table"] == pytest.approx({"age": 0.2, "dose": 0.2, "weight": -1})
        assert found.photo.image.getpixel((3, 3)) == (255, 0, 0)
        assert found.maps.shape == (1, 12, 18)


def test_a_number_beside_an_image_is_a_category() -> None:
    inputs = (PHOTO, TABLE.tolist(), 1)
    found = ebcli.explain(WithCategory(), inputs, 0, layer="act", transform=as_input)
    assert found.inputs == [pytest.approx({"image": 0.6, "table": 0.4})]
    with pytest.raises(EbcliError, match="input 'category' has whole numbers, which carry no signal"):
        ebcli.explain(WithCategory(), inputs, 0, layer="category", transform=as_input)


def test_two_images_are_two_photos_unless_the_network_needs_both() -> None:
    net = nn.Sequential(nn.Conv2d(3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 2))
    assert len(ebcli.explain(net, (PHOTO, PHOTO), 0, layer="1", transform=as_input)) == 2
    with pytest.raises(ConfigurationError, match="before and after look like pictures, of which only one"):
        ebcli.explain(Difference(), (PHOTO, PHOTO), 0, transform=as_input)
    with pytest.raises(ConfigurationError, match=r"pass all of them as tensors \(C, H, W\), preprocessed"):
        ebcli.explain(Difference(), {"before": PHOTO, "after": picture()}, 0, transform=as_input)


def test_several_inputs_of_a_network_of_one_are_refused() -> None:
    loaded = ebcli.load_model("efficientnet_lite0")
    for inputs in ((PHOTO, TABLE), (torch.rand(3, 224, 224), TABLE)):
        with pytest.raises(
            ConfigurationError, match="efficientnet_lite0 has one input, but several were passed"
        ):
            ebcli.explain(loaded, inputs)


@pytest.mark.usefixtures("folder")
def test_other_numbers_replace_those_that_a_network_reads() -> None:
    loaded = ebcli.load_model("own.py:Own")
    found = ebcli.explain(loaded, ("red.png", [0.0, 0.6, 0.0]), 0, layer="act", columns=["a", "b", "c"])
    assert found.inputs == [pytest.approx({"image": 0.5, "table": 0.5})]
    assert found.columns[0]["table"] == pytest.approx({"a": 0, "b": 0.5, "c": 0})
    both = ebcli.explain(loaded, ("red.png", "blue.png"), 0, layer="act")
    assert [found.inputs[0]["image"] for found in both] == pytest.approx([0.6, 0])
