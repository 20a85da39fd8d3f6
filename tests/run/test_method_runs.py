"""Maps of several methods: in the command, in records, in raw files, in Python, and of an image of any task."""

import shutil
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import color_tasks
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from method_maps import method_maps
from PIL import Image
from runs import invoke, photos, records, seen, tiny_model, tree
from torch import nn

import ebcli
from ebcli.cli.saliency import main
from ebcli.errors import ConfigurationError, LayerError
from ebcli.gallery.page import read_entries
from ebcli.methods import table
from ebcli.models import load_model
from ebcli.run.plan import RunPlan

pytestmark = pytest.mark.usefixtures("working_directory")


def test_each_method_has_a_picture_and_a_record() -> None:
    photos(Path("photos"), 2)
    result = invoke(*"photos --target 3 --raw -x object -x Grad_CAM -x contrastive".split())
    assert result.exit_code == 0, result.output
    for record in records(Path("saliency")):
        assert [class_["method"] for class_ in record["classes"]] == ["object", "grad-cam", "contrastive"]
        names = [Path(path).name for path in record["output"]]
        stem = Path(record["input"]).name
        assert names == [
            f"{stem}.3-class-d+object.jpg",
            f"{stem}.3-class-d+grad-cam.jpg",
            f"{stem}.3-class-d.jpg",
            f"{stem}.maps+object-grad-cam.npz",
        ]
        with np.load(record["output"][-1]) as arrays:
            assert arrays["maps+object"].sum() == pytest.approx(1)
            assert arrays["maps+grad-cam"].sum() in (pytest.approx(1), 0)
            assert arrays["relevance+contrastive"].sum(1) == pytest.approx(
                arrays["maps+contrastive"], abs=1e-6
            )


def test_a_run_of_several_methods_resumes_and_does_not_replace_those_of_one() -> None:
    photos(Path("photos"), 2)
    assert invoke("photos", "--target", "3").exit_code == 0
    alone = tree(Path("saliency"))
    several = ("photos", "--target", "3", "-x", "object", "-x", "gradient", "--skip-existing")
    assert invoke(*several).exit_code == 0
    both = tree(Path("saliency"))
    assert alone.items() < both.items()
    again = invoke(*several)
    assert (again.exit_code, again.stdout) == (0, "")


def test_maps_are_those_of_the_method_in_units_of_their_positive_part() -> None:
    from ebcli.run.explainer import Explainer

    pixels = np.random.default_rng(0).integers(0, 256, (24, 24, 3), np.uint8)
    names = ("gradient-x-input", "layer-cam", "marginal")
    plan = RunPlan.from_values(
        images=(Path("a.png"),), model="tiny", layer=("2",), target=("3",), method=names
    )
    (explanation,) = Explainer(plan).explain([seen(pixels)])
    loaded = tiny_model()
    inputs = loaded.transforms.normalize(pixels[None])
    assert [map_.method for map_ in explanation.maps] == [*names]
    for map_ in explanation.maps:
        (expected,) = method_maps(map_.method, loaded.net, inputs, torch.tensor([[3]]), "2")
        if map_.method != "marginal":
            expected = expected / expected.clamp(min=0).sum()
        np.testing.assert_allclose(map_.values, expected.detach(), atol=1e-5)
        assert (map_.strength, map_.mass is None) == (None, map_.method != "marginal")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("-x object --marginal", "--marginal is short for --method marginal: drop one of them"),
        ("-x gradient --against 2", "--against compares classes, which gradient maps do not"),
        ("-x grad-cam -x hires-cam --signed", "grad-cam maps have no negative values"),
        ("-x object --style atlas", "an atlas compares classes by contrastive maps"),
        ("-x rise", "rise makes maps of the picture: drop --layer"),
        ("-x grad-cam++", "there is no method 'grad-cam++': did you mean 'grad-cam'? Else choose one of"),
        ("-x GRAD_CAM!!", "there is no method 'GRAD_CAM!!'"),
    ],
)
def test_what_a_method_cannot_do_is_one_sentence_before_the_run(arguments: str, sentence: str) -> None:
    photos(Path("photos"), 1)
    (photo,) = map(str, Path("photos").iterdir())
    result = invoke(photo, *arguments.split())
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not Path("saliency").exists()


def test_class_activation_maps_need_channels() -> None:
    net = tiny_model().net
    with pytest.raises(LayerError, match="grad-cam needs a layer with channels, not the pixels"):
        ebcli.explain(net, torch.rand(1, 3, 24, 24), 3, layer="input", method="grad-cam")
    (found,) = ebcli.explain(
        net, torch.rand(1, 3, 24, 24), 3, layer=["2", "input"], method=["grad-cam", "gradient"]
    )
    places = [(map_.layer, map_.method) for map_ in found.explanation.maps]
    assert places == [("2", "grad-cam"), ("2", "gradient"), ("input", "gradient")]


class Dense(nn.Module):
    """Segmentation: the classes are the channels of a convolution."""

    task = "segmentation"

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU())
        self.classify = nn.Conv2d(8, 4, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.classify(self.features(images))
        return logits


def test_the_score_of_a_segment_is_the_mean_of_its_logits() -> None:
    net = Dense().eval()
    inputs = torch.rand(1, 3, 16, 20)
    (found,) = ebcli.explain(net, inputs, layer="features", method="gradient-x-input", where=(7, 5))
    (map_,) = found.explanation.maps
    features = net.features(inputs).detach().requires_grad_()
    logits = net.classify(features)
    (slopes,) = torch.autograd.grad(logits[0, map_.subject.index, 5, 7], features)
    expected = (slopes * features).sum(1)[0].detach()
    positive = float(expected.clamp(min=0).sum()) or 1
    np.testing.assert_allclose(map_.values, expected / positive, atol=1e-5)
    assert np.flatnonzero(map_.values).tolist() == [5 * 20 + 7]


def test_a_method_of_a_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    from ebcli.methods import table

    monkeypatch.setattr(table, "_TABLE", {**table._TABLE})

    @ebcli.method("activation", is_signed=True)
    def activation(call: Any) -> Any:
        return [layer.maps_of(layer.activation) for layer in call.layers_with_gradients()]

    net = tiny_model().net
    inputs = torch.rand(1, 3, 24, 24)
    (found,) = ebcli.explain(net, inputs, 3, layer="2", method="Activation")
    expected = net[:3](inputs).sum(1)[0].detach()
    np.testing.assert_allclose(found.maps[0], expected / expected.clamp(min=0).sum(), atol=1e-5)
    assert "layer 2, activation" in found.about
    with pytest.raises(ConfigurationError, match="there is a method 'object' already"):
        ebcli.method("object")(activation)


def test_a_method_of_an_installed_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "_TABLE", {**table._TABLE})
    point = EntryPoint("uniform", "uniform_method:uniform", table.PLUGINS)
    Path("uniform_method.py").write_text(
        "from ebcli.methods.call import MethodMaps\n"
        "import ebcli\n"
        "@ebcli.method('uniform')\n"
        "def uniform(call):\n"
        "    return [MethodMaps(layer=name, maps=call.picture.new_ones(len(call.picture), 1, 4, 4))"
        " for name in call.layers]\n"
    )
    monkeypatch.syspath_prepend(str(Path.cwd()))
    monkeypatch.setattr(table, "plugins", lambda _group: [point])
    assert table.method_names()[-1] == "uniform"
    (found,) = ebcli.explain(tiny_model().net, torch.rand(1, 3, 24, 24), 3, layer="2", method="uniform")
    assert found.maps == pytest.approx(np.full((1, 4, 4), 1 / 16))


STRONG = Path(__file__).parents[2] / "docs/examples/strong.py"


def test_a_method_of_a_file() -> None:
    """As in docs/methods.md: the command takes it from the file, records name the file, and a change is noticed."""
    photos(Path("photos"), 1)
    shutil.copy(STRONG, "mine.py")
    name = "mine.py:strong-gradient"
    arguments = ("photos", "--target", "3", "-x", name, "--raw")
    assert invoke(*arguments).exit_code == 0
    (record,) = records(Path("saliency"))
    assert [entry["method"] for entry in record["classes"]] == [name]
    assert "strong-gradient" not in table.method_names()  # elsewhere, its file names it
    assert invoke(*arguments, "--skip-existing").stdout == ""
    assert invoke("--config", "saliency/settings.toml", "--overwrite").exit_code == 0
    with Path("mine.py").open("a") as file:
        file.write("# changed\n")
    table._method_of_file.cache_clear()  # as in a new process
    assert invoke(*arguments, "--skip-existing").stdout


def test_a_benchmark_of_a_method_of_a_file() -> None:
    shutil.copy(STRONG, "theirs.py")
    photos(Path("photos"), 1)
    chosen = ("--method", "theirs.py:strong_gradient", "--method", "gradient")
    result = invoke("benchmark", "deletion", "photos", *chosen, "--limit", "1", "--steps", "2")
    assert result.exit_code == 0, result.output
    assert "theirs.py:strong_gradient" in result.stdout


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("own.py:nothing", "own.py registers no method 'nothing': choose one of strong-gradient"),
        ("own.py:strong-gradent", "did you mean"),
        ("missing.py:strong", "the file missing.py does not exist"),
        ("broken.py:strong", "broken.py:strong failed (ZeroDivisionError"),
        ("exits.py:strong", "exits.py:strong called sys.exit(3)"),
    ],
)
def test_why_a_file_has_no_such_method(name: str, problem: str) -> None:
    shutil.copy(STRONG, "own.py")
    Path("broken.py").write_text("1 / 0\n")
    Path("exits.py").write_text("import sys\nsys.exit(3)\n")
    photos(Path("photos"), 1)
    result = invoke("photos", "-x", name)
    assert result.exit_code == 2
    assert problem in " ".join(result.stderr.split())


def test_reports_have_a_tab_for_each_method() -> None:
    photos(Path("photos"), 1)
    assert invoke("photos", "--target", "3", "-x", "object", "-x", "gradient", "--report").exit_code == 0
    (entry,) = read_entries(Path("saliency"))
    assert [outcome.method for outcome in entry.outcomes] == ["gradient", "object"]
    for outcome in entry.outcomes:
        assert [map_entry.class_record.method for map_entry in outcome.maps] == [outcome.method]


def test_results_of_several_methods_are_checked_again() -> None:
    photos(Path("photos"), 2)
    assert invoke("photos", "--target", "3", "--raw", "-x", "object", "-x", "layer-cam").exit_code == 0
    assert invoke("check", "saliency").exit_code == 0


def test_each_detection_has_maps_of_its_own_candidate() -> None:
    """A red and a green square: the score of each is that of one anchor, which sees the color of its cell alone."""
    image = Image.new("RGB", (192, 192))
    image.paste((255, 0, 0), (16, 80, 48, 112))
    image.paste((0, 255, 0), (144, 80, 176, 112))
    detector = load_model(f"{color_tasks.__file__}:detector")
    found = ebcli.explain(detector, image, method=["gradient-x-input", "object"])
    assert {map_.subject.name for map_ in found.explanation.maps} == {"red", "green"}
    for map_ in found.explanation.maps:
        _, width = map_.values.shape
        columns = map_.values.clip(0).sum(0) @ np.linspace(0, 1, width)
        is_left = columns < map_.values.clip(0).sum() / 2
        assert is_left == (map_.subject.name == "red")


def test_other_methods_stand_beside_the_maps_of_detections() -> None:
    image = Image.new("RGB", (192, 192))
    image.paste((255, 0, 0), (16, 80, 48, 112))
    image.save("red.png")
    model = f"{color_tasks.__file__}:detector"
    words = ["red.png", "--model", model, "--panel", "-o", "panel.png"]
    result = CliRunner().invoke(main, [*words, "--compare-with", "grad-cam", "--workers", "0"])
    assert result.exit_code == 0, result.output
    with Image.open("panel.png") as wide:
        sides = wide.size
    assert CliRunner().invoke(main, [*words, "--overwrite", "--workers", "0"]).exit_code == 0
    with Image.open("panel.png") as narrow:
        assert narrow.size != sides
