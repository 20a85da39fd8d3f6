"""Networks of Hugging Face for video, segmentation and detection; transformers and its processors are the reference."""

import csv
import functools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from packaging.version import Version
from PIL import Image
from task_models import FRAMES, NAMES, NETWORKS, SIDE, TEXTS, WITH_TEXTS, saved

import ebcli
from benchmarks import task_table
from ebcli.errors import ConfigurationError
from ebcli.models import LoadedModel, default_layer, load_model

MEASURED_WITH = Version("5.23")  # of transformers, docs/networks/transformers.csv

TASKS = {
    "video": ("VideoMAE", "TimeSformer", "ViViT"),
    "segmentation": ("SegFormer", "UperNet", "MaskFormer", "Mask2Former"),
    "detection": ("DETR", "Conditional DETR", "Deformable DETR", "RT-DETR", "YOLOS", *WITH_TEXTS),
}


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("networks")


@functools.cache
def loaded(name: str, parent: Path, **options: Any) -> LoadedModel:
    return load_model(
        f"hf/{saved(name, parent)}", class_names=TEXTS if name in WITH_TEXTS else None, **options
    )


def plain(name: str, parent: Path) -> transformers.PreTrainedModel:
    return getattr(transformers, NETWORKS[name][0]).from_pretrained(saved(name, parent)).eval()


def photo(height: int, width: int) -> Image.Image:
    """Smooth noise, of which resizing keeps most."""
    coarse = np.random.default_rng(0).integers(0, 256, (height // 16, width // 16, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


FIRST = {"SegFormer", "DETR", "OWL-ViT", "YOLOS"}  # of their kinds


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("task", "name"),
    [
        pytest.param(task, name, marks=[pytest.mark.release] * (task != "video" and name not in FIRST))
        for task, names in TASKS.items()
        for name in names
    ],
)
def test_networks_are_explained_down_to_the_input(parent: Path, task: str, name: str) -> None:
    model = loaded(name, parent)
    assert (model.task, model.categories) == (task, TEXTS if name in WITH_TEXTS else NAMES)
    torch.manual_seed(1)
    inputs = torch.randn(1, 3, *model.transforms.shape)
    layers = [None, default_layer(model)]
    where = {"video": None, "segmentation": (3, 5), "detection": (2,)}[task]
    for result in ebcli.excitation_backprop(model.net, inputs, 1, layers, joint=True, where=where):
        # class tokens, texts and detection tokens are constants
        has_constants = name in ("TimeSformer", "ViViT", "YOLOS", *WITH_TEXTS)
        assert (0.05 if has_constants else 0.999) < result.mass.item() <= 1 + 1e-4
        assert (result.relevance >= 0).all()
        height, width = result.maps.shape[-2:]
        assert height == width > 3
        assert result.maps[0].sum().item() > 0.05


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", [*TASKS["video"], "SegFormer", "UperNet", "DETR", "YOLOS"])
def test_logits_are_those_of_transformers(parent: Path, name: str) -> None:
    model = loaded(name, parent)
    inputs = torch.randn(2, 3, *model.transforms.shape)
    with torch.no_grad():
        found, expected = (
            model.net(inputs),
            plain(name, parent)(inputs.transpose(1, 2) if model.task == "video" else inputs),
        )
    if model.task == "detection":
        found, without = found.logits.mT, expected.logits.shape[-1] - 1
        torch.testing.assert_close(found, expected.logits[..., :without], rtol=0, atol=0)
    else:
        torch.testing.assert_close(found, expected.logits, rtol=0, atol=0)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["MaskFormer", "Mask2Former"])
def test_class_maps_are_those_of_the_processor(parent: Path, name: str) -> None:
    model = loaded(name, parent)
    inputs = torch.randn(1, 3, *model.transforms.shape)
    processor = transformers.AutoImageProcessor.from_pretrained(saved(name, parent))
    with torch.no_grad():
        maps, output = model.net(inputs), plain(name, parent)(inputs)
    assert model.scores == "raw"
    if name == "MaskFormer":  # the other resizes masks to 384 x 384 pixels first
        (expected,) = processor.post_process_semantic_segmentation(output)
        assert torch.equal(maps[0].argmax(0), expected)
    classes = output.class_queries_logits.softmax(-1)[0, :, :-1]  # (queries, classes)
    pairs = zip(output.masks_queries_logits[0], classes, strict=True)
    expected = sum(mask.sigmoid() * scores[:, None, None] for mask, scores in pairs)
    torch.testing.assert_close(maps[0], expected)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["DETR", "RT-DETR", "YOLOS", "OWL-ViT"])
@pytest.mark.parametrize(("height", "width"), [(160, 240), (256, 192)])
def test_detections_are_those_of_the_processor(parent: Path, name: str, height: int, width: int) -> None:
    """The command's preprocessing, the network, and boxes taken back into the photo."""
    model, image = loaded(name, parent), photo(height, width)
    inputs = model.transforms(image)[None]
    (found,) = ebcli.detections(model.net, inputs, score=0)
    processor = transformers.AutoImageProcessor.from_pretrained(saved(name, parent))
    given = {"pixel_values": processor(image, return_tensors="pt")["pixel_values"]}
    if name in WITH_TEXTS:
        tokenizer = transformers.AutoTokenizer.from_pretrained(saved(name, parent))
        given |= tokenizer(list(TEXTS), padding="max_length", max_length=16, return_tensors="pt")
        given.pop("token_type_ids", None)
    with torch.no_grad():
        output = plain(name, parent)(**given)
    scores = output.logits[0].softmax(-1)[:, :-1] if name in ("DETR", "YOLOS") else output.logits[0].sigmoid()
    x, y, across, down = (output.pred_boxes[0] * torch.tensor([width, height] * 2)).T
    expected = torch.stack([x - across / 2, y - down / 2, x + across / 2, y + down / 2], 1)
    left, top, right, bottom = model.transforms.place(image.size)
    scale = torch.tensor([(right - left) / inputs.shape[3], (bottom - top) / inputs.shape[2]] * 2)
    assert (left, top, right, bottom) == (0, 0, width, height)
    for one in found:
        # sides are rounded to 32 pixels instead of 1, and to 8 bits
        assert one.score == pytest.approx(scores[one.anchor].max().item(), abs=0.03)
        assert (torch.tensor(one.box) * scale - expected[one.anchor]).abs().max() < 0.03 * max(height, width)


def test_whole_images_have_the_sizes_of_the_processor(parent: Path) -> None:
    transforms = loaded("DETR", parent).transforms
    processor = transformers.AutoImageProcessor.from_pretrained(saved("DETR", parent))
    for size in ((160, 160), (160, 200), (400, 100), (90, 700)):
        sides = processor(photo(*size), return_tensors="pt")["pixel_values"].shape[2:]
        found = transforms(photo(*size)).shape[1:]
        assert all(abs(one - other) <= transforms.step / 2 for one, other in zip(found, sides, strict=True))


def test_the_limit_of_the_longer_side_is_the_processors_own(parent: Path) -> None:
    folder = saved("DETR", parent)
    wide = photo(64, 640)
    assert max(load_model(f"hf/{folder}").transforms(wide).shape) == 192  # 200, rounded
    settings = ebcli.Preprocessing(resize=64)
    assert load_model(f"hf/{folder}", preprocessing=settings).transforms(wide).shape == (3, 64, 640)


def test_rectangular_inputs(parent: Path, tmp_path: Path) -> None:
    shutil.copytree(saved("SegFormer", parent), tmp_path, dirs_exist_ok=True)
    processor = transformers.SegformerImageProcessor(size={"height": 96, "width": 160})
    processor.save_pretrained(tmp_path)
    transforms = load_model(f"hf/{tmp_path}").transforms
    image = photo(128, 112)
    expected = processor(image, return_tensors="pt")["pixel_values"][0]
    assert transforms(image).shape == expected.shape == (3, 96, 160)
    assert (transforms(image) - expected).abs().mean() * min(transforms.std) < 0.01
    assert transforms.place(image.size) == (0, 0, 112, 128)


def test_clips_are_preprocessed_as_by_the_processor(parent: Path) -> None:
    frames = [photo(96, 160)] * FRAMES
    for name in TASKS["video"]:
        transforms = loaded(name, parent).transforms
        processor = transformers.AutoImageProcessor.from_pretrained(saved(name, parent))
        expected = processor(frames, return_tensors="pt")["pixel_values"][0].transpose(0, 1)
        found = transforms(
            torch.stack([torch.from_numpy(np.array(frame)).movedim(-1, 0) for frame in frames])
        )
        assert found.shape == expected.shape == (3, FRAMES, 64, 64)
        assert (transforms.frames, (found - expected).abs().mean() * min(transforms.std) < 0.02) == (
            FRAMES,
            True,
        )


@pytest.mark.parametrize("layer", ["timesformer.embeddings", "timesformer.encoder.layer.0"])
def test_tokens_of_timesformer_are_put_frame_by_frame(parent: Path, layer: str) -> None:
    """A map of tokens is bright in the frame and at the place of a layer's only active token."""
    model, seen = loaded.__wrapped__("TimeSformer", parent), {}  # not that of other tests, as it gets a hook
    model.net.get_submodule(layer).register_forward_hook(
        lambda _module, _args, output: seen.update(found=output)
    )
    with torch.no_grad():
        clip = torch.zeros(1, 3, FRAMES, 64, 64)
        model.net(clip)
        before = seen["found"]
        clip[:, :, 2, 16:32, 48:] = 3  # the row 1 and the column 3 of frame 2
        model.net(clip)
    change = (one(seen["found"]) - one(before)).abs().sum(-1)[0, 1:].reshape(FRAMES, 4, 4)
    assert change.argmax() == 2 * 16 + 1 * 4 + 3
    if layer.endswith("embeddings"):
        assert (change > 0).sum() == 1


def one(output: object) -> torch.Tensor:
    return output[0] if isinstance(output, tuple) else output


@pytest.mark.release
@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", WITH_TEXTS)
def test_candidates_of_texts(parent: Path, name: str) -> None:
    model = loaded(name, parent)
    inputs = torch.randn(2, 3, SIDE, SIDE)
    tokenizer = transformers.AutoTokenizer.from_pretrained(saved(name, parent))
    with torch.no_grad():
        logits = model.net(inputs).logits
        if name == "OWL-ViT":
            tokens = tokenizer(list(TEXTS) * 2, padding="max_length", max_length=16, return_tensors="pt")
            tokens.pop("token_type_ids", None)
            expected = plain(name, parent)(pixel_values=inputs, **tokens).logits.mT
        else:
            tokens = tokenizer([". ".join(TEXTS) + "."] * 2, return_tensors="pt")
            found = plain(name, parent)(pixel_values=inputs, **tokens).logits
            words = tokenizer.convert_ids_to_tokens(tokens["input_ids"][0])
            assert words == ["[CLS]", "a", "red", "cup", ".", "cat", ".", "[SEP]"]
            expected = torch.stack([found[..., 1:4].amax(-1), found[..., 5]], 1)
    torch.testing.assert_close(logits, expected, rtol=0, atol=0)


@pytest.mark.release
def test_the_architecture_that_a_configuration_names_decides(parent: Path, tmp_path: Path) -> None:
    config = json.loads((saved("SegFormer", parent) / "config.json").read_text())
    for architectures, task in (
        (["SegformerForImageClassification"], "classification"),
        ([], "classification"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": architectures}))
        assert load_model(f"hf/{tmp_path}", "none").task == task


def test_wrong_use_is_one_sentence(parent: Path) -> None:
    with pytest.raises(ConfigurationError, match="give one, as in --target") as caught:
        load_model(f"hf/{saved('OWL-ViT', parent)}")
    assert "\n" not in str(caught.value)
    for name in WITH_TEXTS:
        with pytest.raises(ConfigurationError, match="shorten it"):
            load_model(f"hf/{saved(name, parent)}", class_names=["cup " * 300])


def test_checkpoints_keep_the_number_of_classes(parent: Path) -> None:
    for name in ("DETR", "Mask2Former"):
        file = saved(name, parent) / "model.safetensors"
        assert loaded(name, parent, weights=str(file)).num_classes == len(NAMES)


@pytest.mark.release
def test_the_table_is_what_its_script_measures(parent: Path) -> None:
    with task_table.TABLE.open(encoding="utf-8", newline="") as file:
        rows = {row["family"]: row for row in csv.DictReader(file)}
    assert list(rows) == list(NETWORKS)
    assert {row["same_logits"] for row in rows.values()} == {"yes"}
    for name in ("TimeSformer", "RT-DETR"):
        measured = task_table.measure(name, parent)
        for column in ("mass_there", "mass_at_input"):
            expected, found = (float(row.pop(column)) for row in (rows[name], measured))
            assert 0 < found <= 1 + 1e-3
            if Version(transformers.__version__) >= MEASURED_WITH:  # others draw other random weights
                assert found == pytest.approx(expected, abs=1e-3)
        assert rows[name] == measured
