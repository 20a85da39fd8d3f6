"""Networks of Ultralytics: the same detections and probabilities as with the library, and maps of each detection."""

import importlib.util
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from runs import Forked

import ebcli
from ebcli.cli.saliency import main
from ebcli.errors import ConfigurationError
from ebcli.models import load_model
from ebcli.models.sources.ultralytics import Ultralytics

pytestmark = pytest.mark.usefixtures("watched")

if importlib.util.find_spec("ultralytics") is None and "CI" not in os.environ:
    pytest.skip("ultralytics is not installed", allow_module_level=True)

SIDE = 96
SIZE = 96, 64  # width and height, so it is padded, but not resized
DETECTORS = ["yolov8n", "yolo11n-seg", "yolo11n-pose", "yolo12n", "yolov10n", "yolo26n", "yolo26n-pose"]

QUICK = ["yolov8n", "yolo26n-pose"]  # with non-maximum suppression, and without

Saved = Callable[[str], str]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """Imported as the command does: on its own, it changes what other tests use."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("YOLO_CONFIG_DIR", str(tmp_path_factory.mktemp("settings")))
        before = _elsewhere()
        library = Ultralytics("yolo11n.yaml")._library
        assert _elsewhere() == before
    return library


def _elsewhere() -> tuple[object, ...]:
    return {**os.environ}, Image.open, torch.save, np.get_printoptions()


@pytest.fixture(scope="module")
def saved(library: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """Writes a small random network, as the library does, and returns the name of the file."""
    folder = tmp_path_factory.mktemp("ultralytics")

    def save(name: str) -> str:
        file = folder / f"{name}.pt"
        if not file.exists():
            torch.manual_seed(0)
            model = library.YOLO(f"{name}.yaml")
            model.model.names = {i: f"thing {i}" for i in model.model.names}
            for module in model.model.modules():
                if isinstance(module, torch.nn.BatchNorm2d):  # untrained ones shrink the signal to nothing
                    torch.nn.init.uniform_(module.weight, 1, 2)
                    torch.nn.init.normal_(module.bias)
            torch.save({"model": model.model, "train_args": {"imgsz": SIDE, "task": model.task}}, file)
        return str(file)

    return save


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.png"
    pixels = np.random.default_rng(0).integers(0, 256, (SIZE[1] // 8, SIZE[0] // 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize(SIZE, Image.Resampling.BICUBIC).save(path)
    return path


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "name",
    [*QUICK, *(pytest.param(name, marks=pytest.mark.release) for name in DETECTORS if name not in QUICK)],
)
def test_detections_are_those_of_the_library(
    name: str, library: ModuleType, saved: Saved, photo: Path
) -> None:
    file = saved(name)
    loaded = load_model(f"ultralytics/{file}")
    assert loaded.task == "detection"
    assert loaded.categories is not None
    assert loaded.categories[0] == "thing 0"
    image = Image.open(photo)
    inputs = loaded.transforms(image)[None]
    everything = sorted((one.score for one in ebcli.detections(loaded.net, inputs, 0)[0]), reverse=True)
    least = everything[min(10, len(everything) - 1)]
    has_own_choice = name.startswith(("yolov10", "yolo26"))
    (expected,) = library.YOLO(file).predict(
        np.asarray(image)[..., ::-1].copy(),
        **{"imgsz": SIDE, "rect": False, "conf": least - 1e-6, "iou": 0.7, "verbose": False, "save": False},
        **(
            {"nms": False, "agnostic_nms": True} if has_own_choice else {}
        ),  # else one candidate has several classes
    )
    found = ebcli.detections(loaded.net, inputs, least - 1e-6)[0]
    boxes = [(one.label, one.score, *one.box) for one in found]
    place = loaded.transforms.place(SIZE)
    data = expected.boxes
    own = sorted(
        zip(data.cls.tolist(), data.conf.tolist(), data.xyxy.tolist(), strict=True), key=lambda one: -one[1]
    )
    assert len(boxes) == len(own) > 3
    for (label, score, *box), (their_label, their_score, their_box) in zip(boxes, own, strict=True):
        assert label == their_label
        assert score == pytest.approx(their_score, abs=1e-4)
        moved = [value + place[k % 2] for k, value in enumerate(box)]
        clipped = [min(max(value, 0), SIZE[k % 2]) for k, value in enumerate(moved)]
        assert clipped == pytest.approx(their_box, abs=0.1)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["yolov8n", "yolo26n"])
def test_each_map_starts_at_the_logit_of_its_detection(name: str, saved: Saved, photo: Path) -> None:
    loaded = load_model(f"ultralytics/{saved(name)}")
    inputs = loaded.transforms(Image.open(photo))[None]
    seen = {}
    head = loaded.net.model[-1]
    branch = head.one2one_cv3 if name == "yolo26n" else head.cv3
    handles = [
        convolutions.register_forward_hook(lambda _m, _i, output, k=k: seen.update({k: output}))
        for k, convolutions in enumerate(branch)
    ]
    with torch.no_grad():
        candidates = loaded.net(inputs)
    for handle in handles:
        handle.remove()
    logits = torch.cat([seen[k].flatten(2) for k in range(3)], 2)
    torch.testing.assert_close(candidates.scores, logits.sigmoid())
    (best, *_) = candidates.detections(0)[0]
    assert logits.sigmoid()[0, best.label, best.anchor] == pytest.approx(best.score)
    layer = ebcli.default_layer(loaded)
    assert layer == "model.4"
    result = ebcli.excitation_backprop(
        loaded.net, inputs, best.label, layer, where=(best.anchor,), joint=True
    )
    assert float(result.mass) == pytest.approx(1)
    assert result.maps.shape == (1, SIDE // 8, SIDE // 8)


def test_a_classifier_has_the_probabilities_of_the_library(
    library: ModuleType, saved: Saved, photo: Path
) -> None:
    file = saved("yolov8n-cls")
    loaded = load_model(f"ultralytics/{file}")
    assert (loaded.task, loaded.num_classes, loaded.transforms.size) == ("classification", 1000, (SIDE, SIDE))
    image = Image.open(photo)
    (expected,) = library.YOLO(file).predict(np.asarray(image)[..., ::-1].copy(), imgsz=SIDE, verbose=False)
    probabilities = loaded.to_scores(loaded.net(loaded.transforms(image)[None]))[0]
    torch.testing.assert_close(probabilities, expected.probs.data, atol=1e-5, rtol=1e-3)


def test_semantic_segmentation(saved: Saved) -> None:
    loaded = load_model(f"ultralytics/{saved('yolo26n-sem')}")
    assert (loaded.task, loaded.num_classes) == ("segmentation", 19)


@pytest.mark.release
@pytest.mark.parametrize("size", [(96, 50), (33, 96), (40, 24)])
def test_the_letterbox_is_that_of_the_library(size: tuple[int, int], saved: Saved) -> None:
    """Enlarged or as they are, as it shrinks images without smoothing."""
    from ultralytics.data.augment import LetterBox

    spec = load_model(f"ultralytics/{saved('yolov8n')}").transforms
    x, y = np.meshgrid(*(np.linspace(0, 255, length) for length in size))
    pixels = np.stack([x, y, (x + y) / 2], -1).astype(np.uint8)
    expected = LetterBox((SIDE, SIDE), auto=False)(image=pixels)
    difference = np.abs(spec.read(Image.fromarray(pixels)).astype(int) - expected)
    assert difference.max() <= 3  # rounding
    assert (spec(Image.fromarray(pixels)) * 255 - torch.from_numpy(expected).movedim(2, 0)).abs().max() <= 3


@pytest.mark.release
def test_untrained_networks_and_state_dicts(saved: Saved, tmp_path: Path) -> None:
    untrained = load_model("ultralytics/yolo11n.yaml")
    assert not untrained.trained
    assert untrained.categories is None
    assert not load_model("ultralytics/yolo11n.pt", weights="none").trained
    file = saved("yolov8n")
    again = load_model(f"ultralytics/{file}", weights="none")
    assert not again.trained
    assert again.categories == load_model(f"ultralytics/{file}").categories
    state = {key: value + 1 for key, value in untrained.net.state_dict().items() if value.is_floating_point()}
    torch.save({**untrained.net.state_dict(), **state}, tmp_path / "state.pt")
    loaded = load_model("ultralytics/yolo11n.yaml", weights=tmp_path / "state.pt")
    assert loaded.trained
    for key, value in loaded.net.state_dict().items():
        assert torch.equal(value, state.get(key, value)), key


def test_published_files_are_kept_where_torch_has_its_own(
    saved: Saved, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def download(file: Path) -> str:
        if not Path(file).exists():
            asked.append(file)
            Path(file).write_bytes(Path(saved("yolov8n")).read_bytes())
        return str(file)

    monkeypatch.setattr("ultralytics.utils.downloads.attempt_download_asset", download)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        loaded = load_model("ultralytics/yolov8n.pt")
        assert loaded.trained
        assert loaded.files == (tmp_path / "hub/checkpoints/yolov8n.pt",)
    assert asked == [tmp_path / "hub/checkpoints/yolov8n.pt"]
    assert [path.name for path in tmp_path.iterdir()] == ["hub"]


class _Code:
    """What a malicious file holds."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def _write(path: Path, saved: Saved) -> None:
    kinds = {
        "state.pt": lambda: torch.save({"a.weight": torch.zeros(3)}, path),
        "other.pt": lambda: torch.save({"model": torch.nn.Linear(3, 3)}, path),
        "cut.pt": lambda: path.write_bytes(Path(saved("yolov8n")).read_bytes()[:5000]),
        "text.pt": lambda: path.write_text("text"),
        "code.pt": lambda: torch.save({"model": _Code(path.with_name("ran"))}, path),
    }
    if path.name in kinds:
        kinds[path.name]()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("state.pt", r"state.pt is a state dict: pass --weights .*, and --model ultralytics/yolo11n.yaml"),
        ("other.pt", r"other.pt holds a Linear, not a model of Ultralytics"),
        ("cut.pt", r"cannot load ultralytics/\S*cut.pt \(.*\): give a model of Ultralytics, such as"),
        ("text.pt", r"cannot load ultralytics/\S*text.pt \(.*\): give a model of Ultralytics, such as"),
        (
            "code.pt",
            r"cannot load ultralytics/\S*code.pt \(.*\): .* ULTRALYTICS_SAFE_LOAD=false runs the code in it",
        ),
        ("gone.pt", r"gone.pt is neither a file nor a model that Ultralytics publishes: name a .pt file"),
        (
            "yolo26n-obb.yaml",
            r"obb.yaml has a head for obb \(OBB26\), but YOLO's detect, segment, pose, classify, semantic",
        ),
        (
            "nothing.yaml",
            r"cannot load ultralytics/nothing.yaml \('nothing.yaml' does not exist\): give a model of",
        ),
    ],
)
def test_wrong_files(
    name: str, message: str, saved: Saved, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / name
    _write(path, saved)
    with pytest.raises(ConfigurationError, match=message) as caught:
        load_model(f"ultralytics/{path if path.suffix == '.pt' else name}")
    assert "\n" not in str(caught.value)
    assert "❌" not in str(caught.value)
    assert capfd.readouterr() == ("", "")
    assert not (tmp_path / "ran").exists()
    if name == "gone.pt":
        with pytest.raises(ConfigurationError, match=r"did you mean 'yolo11n\.pt'"):
            load_model("ultralytics/yolo11nn.pt")


@pytest.mark.release
def test_the_command_writes_only_its_maps_and_prints_only_paths(
    saved: Saved, photo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cwd := tmp_path / "empty").mkdir()
    model = ["--model", f"ultralytics/{saved('yolov8n')}", "--workers", "0"]
    run = Forked(cwd, str(photo), *model, "--top-k", "1", "--score", "0", "-o", "maps")
    assert run.wait() == 0
    assert run.err.read_text() == ""
    (line,) = run.out.read_text().splitlines()
    assert (cwd / line).is_file()
    assert [path.name for path in cwd.iterdir()] == ["maps"]

    monkeypatch.chdir(cwd)
    result = CliRunner().invoke(
        main, [str(photo), *model, "--score", "0", "--top-k", "3", "--json", "-o", "maps"]
    )
    (record,) = (json.loads(line) for line in result.stdout.splitlines())
    assert record["fit"] == "pad"
    assert len(record["classes"]) == 3
    for one in record["classes"]:
        left, top, width, height = one["box"]
        assert 0 <= left <= left + width <= SIZE[0]
        assert 0 <= top <= top + height <= SIZE[1]
