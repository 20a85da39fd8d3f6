"""Whole runs with real networks, through the command line."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from click.testing import CliRunner, Result
from PIL import Image

import ebcli
from ebcli.cli.saliency import main
from ebcli.files.images import decode

SAMPLES = Path(__file__).parents[2] / "sample_images"


@pytest.fixture(autouse=True)
def working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, ("--workers", "0", *arguments))


def test_in_the_mosaic_each_class_lies_on_its_own_photo() -> None:
    loaded = ebcli.load_model()
    inputs = loaded.transforms(decode(SAMPLES / "mosaic.jpg"))[None]
    assert loaded.categories is not None
    asked = [[loaded.categories.index(name) for name in ("tiger cat", "espresso")]]
    above = {}  # how much of the positive maps lies in the upper half, the cat
    for contrastive in (True, False):
        result = ebcli.excitation_backprop(
            loaded.net, inputs, asked, layer="features.11", contrastive=contrastive
        )
        positive = result.maps[0].clamp(min=0)
        above[contrastive] = positive[:, : positive.shape[1] // 2].sum((1, 2)) / positive.sum((1, 2))
    cat, espresso = above[True]
    assert cat > 0.9 and espresso < 0.1
    # without contrast, part of each map lies on the other class's photo
    assert cat > above[False][0] and espresso < above[False][1]


def test_a_directory_of_photos_becomes_a_tree_of_pictures(tmp_path: Path) -> None:
    (tmp_path / "photos/deep").mkdir(parents=True)
    shutil.copy(SAMPLES / "coffee.jpg", "photos/coffee.jpg")
    shutil.copy(SAMPLES / "chelsea.jpg", "photos/deep/no suffix")
    (tmp_path / "photos/notes.txt").write_text("not a picture")
    first = invoke("photos")
    assert first.exit_code == 0
    rate, summary = first.stderr.splitlines()
    assert re.fullmatch(r"2 images in \d+\.\d s, \d+\.\d (images/s|s per image)", rate)
    assert summary == "2 images: 2 done; 1 other file skipped"
    written = [Path(line) for line in first.stdout.splitlines()]
    pictures = [path for path in Path.cwd().glob("saliency/**/*") if path.suffix in (".jpg", ".png")]
    assert sorted(written) == sorted(path.relative_to(tmp_path) for path in pictures)
    assert [str(path) for path in written] == [
        "saliency/coffee.jpg.967-espresso.jpg",
        "saliency/deep/no suffix.285-egyptian-cat.png",
    ]
    expected = (("coffee", "JPEG"), ("chelsea", "PNG"))  # the name decides, so that resuming reads no photo
    for path, (source, kind) in zip(written, expected, strict=True):
        with Image.open(path) as picture, Image.open(SAMPLES / f"{source}.jpg") as photo:
            assert (picture.format, picture.size) == (kind, photo.size)
    # its own results are no input, and the same again is the same
    before = [path.read_bytes() for path in written]
    second = invoke("photos", str(written[0]))  # a result is no photo
    assert second.stdout == first.stdout
    assert [path.read_bytes() for path in written] == before


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--model", "vgg61"], "'vgg16'"),
        (["--layer", "featurs.11"], "'features.11'"),
        (["--target", "tigre cat"], "'tiger cat'"),
        (["--target", "1000"], "0 to 999"),
        (
            ["--target", "281", "--target", "tiger cat", "--against", "282"],
            "tiger cat is both --target and --against",
        ),
        (["--cmap", "infernal"], "'inferno'"),
        (["--device", "warp"], "warp"),
        (["--weights", "IMAGENET_V1"], "IMAGENET1K_V1"),
    ],
)
def test_a_wrong_name_gets_one_line_with_the_closest_and_no_work_is_done(
    arguments: list[str], expected: str
) -> None:
    result = invoke(*arguments, str(SAMPLES / "coffee.jpg"))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Error: ")
    assert expected in result.stderr
    assert result.stderr.count("\n") == 1
    assert not Path("saliency").exists()


def test_targets_top_k_and_marginal_maps() -> None:
    photo = str(SAMPLES / "mosaic.jpg")
    top = invoke("--top-k", "3", "-o", "top", photo)
    assert len(set(top.stdout.splitlines())) == 3
    targets = ("--target", "espresso", "--target", "282", "--target", "967", "--target", "tiger cat")
    chosen = invoke(*targets, "-o", "contrastive", photo)
    assert [line.rpartition("mosaic.jpg.")[2] for line in chosen.stdout.splitlines()] == [
        "967-espresso.jpg",
        "282-tiger-cat.jpg",
    ]
    marginal = invoke(*targets, "-o", "marginal", "--marginal", photo)
    for one, other in zip(chosen.stdout.splitlines(), marginal.stdout.splitlines(), strict=True):
        assert not np.array_equal(np.asarray(Image.open(one)), np.asarray(Image.open(other)))


def test_against_other_classes() -> None:
    photo = str(SAMPLES / "mosaic.jpg")
    likely = json.loads(invoke("--json", "--marginal", "-o", "marginal", photo).stdout)["classes"][0]["index"]
    result = invoke("--json", "--raw", "--against", str(likely), "--against", "cup", photo)
    record = json.loads(result.stdout)
    loaded = ebcli.load_model(preprocessing=ebcli.Preprocessing(fit="whole"))
    name = loaded.categories[likely]
    assert record["method"] == f"contrastive EB against {name}, cup"
    assert record["against"] == [likely, 968]
    ranked = loaded.net(loaded.transforms(Image.open(photo))[None]).topk(4).indices[0].tolist()
    second = next(index for index in ranked if index not in (likely, 968))
    assert record["classes"][0]["index"] == second
    inputs = loaded.transforms(Image.open(photo))[None]
    expected = ebcli.excitation_backprop(loaded.net, inputs, second, "features.11", against=[likely, 968])
    with np.load(record["output"][-1]) as raw:
        relevance = raw["relevance"][0]
        assert str(raw["method"]) == record["method"]
    np.testing.assert_allclose(relevance, expected.relevance[0], atol=1e-5)


def test_a_checkpoint_with_classes_of_its_own(tmp_path: Path) -> None:
    torch.save(torchvision.models.squeezenet1_1(num_classes=5).state_dict(), tmp_path / "own.pth")
    own = "--model squeezenet1_1 --weights own.pth --layer features.7 --resize 64 --crop 64".split()
    own.append(str(SAMPLES / "rocket.jpg"))
    result = invoke("--target", "4", *own)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.endswith("rocket.jpg.4@features-7.jpg\n")
    most = {"6": 5, "2": 2}  # no more than there are
    for asked, count in most.items():
        assert len(invoke("--top-k", asked, *own).stdout.splitlines()) == count
    assert len(invoke("--top-k", "5", "--against", "3", *own).stdout.splitlines()) == 4
    for wrong in (["--target", "5"], ["--target", "rocket"]):
        result = invoke(*wrong, *own)
        assert result.exit_code == 2
        assert "Error: " in result.stderr


def test_list_layers() -> None:
    result = CliRunner().invoke(main, ["layers", "--model", "resnet18", "--weights", "none"])
    assert result.exit_code == 0
    assert result.stderr.split() == ["NAME", "TYPE", "OUTPUT", "STRIDE", "DEFAULT"]
    # conv4_x in the paper's table, with 256 channels of 14 x 14 cells of 16 pixels for an input of 224
    rows = [line.split() for line in result.stdout.splitlines()]
    assert [row for row in rows if row[-1] == "*"] == [["layer3", "Sequential", "256x14x14", "16", "*"]]
    assert (
        len({line.index("BatchNorm2d") for line in result.stdout.splitlines() if "BatchNorm2d" in line}) == 1
    )


def test_a_large_image_is_no_reason_for_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    with Image.open(SAMPLES / "rocket.jpg") as photo:
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", photo.width * photo.height - 1)
    result = invoke(str(SAMPLES / "rocket.jpg"))
    assert (result.exit_code, result.stderr) == (0, "")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    result = invoke(str(SAMPLES / "rocket.jpg"))
    assert result.exit_code == 1
    assert "too many pixels" in result.stderr
