"""Models of Hugging Face in local directories; transformers is the reference."""

import json
import os
from pathlib import Path

import pytest
import torch
import transformers
from PIL import Image

from ebcli.errors import ConfigurationError
from ebcli.models import load_model

SIZES = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
CATEGORIES = (
    "cat",
    "dog",
    "cup",
    "fox",
    "pen",
    "jar",
    "owl",
    "elk",
    "bus",
    "hat",
    "key",
    "box",
)  # 10 comes after 2
NAMES = dict(enumerate(CATEGORIES))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a model in ``vit``."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(5)
    config = transformers.ViTConfig(
        image_size=64, id2label=NAMES, label2id={v: k for k, v in NAMES.items()}, **SIZES
    )
    transformers.ViTForImageClassification(config).save_pretrained("vit")
    return tmp_path


def reference(path: str = "vit") -> torch.nn.Module:
    return transformers.ViTForImageClassification.from_pretrained(path).eval()


def test_a_directory_gives_the_same_logits_and_module_names(folder: Path) -> None:
    loaded, expected, images = load_model("hf/vit"), reference(), torch.rand(2, 3, 64, 64)
    logits = loaded.net(images)
    assert type(logits) is torch.Tensor
    torch.testing.assert_close(logits, expected(images).logits, rtol=0, atol=0)
    assert [name for name, _ in loaded.net.named_modules()] == [name for name, _ in expected.named_modules()]
    assert (loaded.name, loaded.weights, loaded.categories) == ("hf/vit", "DEFAULT", CATEGORIES)
    assert {file.name for file in loaded.files} == {"config.json", "model.safetensors"}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("prefix", ["", "module.", "model."])
def test_a_checkpoint_sets_the_number_of_classes(folder: Path, prefix: str) -> None:
    config = transformers.ViTConfig(image_size=64, num_labels=5, **SIZES)
    trained, images = transformers.ViTForImageClassification(config).eval(), torch.rand(1, 3, 64, 64)
    torch.save(
        {"state_dict": {prefix + key: value for key, value in trained.state_dict().items()}}, "five.pth"
    )
    loaded = load_model("hf/vit", "five.pth")
    torch.testing.assert_close(loaded.net(images), trained(images).logits, rtol=0, atol=0)
    assert loaded.categories is None
    assert load_model("hf/vit", "five.pth", class_names=list("abcde")).categories == tuple("abcde")


def test_a_checkpoint_of_save_pretrained(folder: Path) -> None:
    images = torch.rand(1, 3, 64, 64)
    loaded = load_model("hf/vit", "vit/model.safetensors")
    torch.testing.assert_close(loaded.net(images), reference()(images).logits, rtol=0, atol=0)


def test_a_backbone_without_classifier_is_refused(folder: Path) -> None:
    transformers.ViTModel(transformers.ViTConfig(image_size=64, **SIZES)).save_pretrained("backbone")
    with pytest.raises(ConfigurationError, match=r"missing keys .*classifier"):
        load_model("hf/backbone")


PROCESSORS = {
    "ViTImageProcessor": {"size": {"height": 64, "width": 64}},
    "ConvNextImageProcessor": {"size": {"shortest_edge": 64}, "crop_pct": 0.875},
    "DeiTImageProcessor": {"size": {"height": 72, "width": 72}, "crop_size": 64},
    "EfficientNetImageProcessor": {"size": {"height": 64, "width": 64}, "image_std": [0.4, 0.5, 0.6]},
    "MobileNetV2ImageProcessor": {"size": {"shortest_edge": 72}, "crop_size": 64},
    "LevitImageProcessor": {"size": {"shortest_edge": 64}, "crop_size": 64},
    "BitImageProcessor": {"size": {"shortest_edge": 72}, "crop_size": 64},
    "BeitImageProcessor": {"size": {"height": 72, "width": 72}, "crop_size": 64, "do_center_crop": True},
    "SiglipImageProcessor": {"size": {"height": 64, "width": 64}},
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", PROCESSORS)
def test_preprocessing_matches_the_image_processor(folder: Path, kind: str) -> None:
    processor = getattr(transformers, kind)(**PROCESSORS[kind])
    processor.save_pretrained("vit")
    preset = load_model("hf/vit", "none").transforms
    for height, width in ((97, 97), (96, 144), (128, 96)):
        image = noise(height, width)
        made = processor(images=image, return_tensors="pt")["pixel_values"][0]
        # equal up to rounding to 8 bits, which may happen between the passes over rows and columns
        levels = (preset(image) - made).abs() * 255 * min(preset.std)
        assert levels.max() <= 8 and levels.mean() < 0.5


def test_large_convnexts_squash_images(folder: Path) -> None:
    transformers.ConvNextImageProcessor(size={"shortest_edge": 384}).save_pretrained("vit")
    content = json.loads(Path("vit/config.json").read_text())
    Path("vit/config.json").write_text(json.dumps({**content, "image_size": 384}))
    assert load_model("hf/vit", "none").transforms.fit == "squash"


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("problem", "scores"),
    [(None, "softmax"), ("multi_label_classification", "sigmoid"), ("regression", "raw")],
)
def test_scores_follow_the_problem_type(folder: Path, problem: str | None, scores: str) -> None:
    content = json.loads(Path("vit/config.json").read_text())
    Path("vit/config.json").write_text(json.dumps({**content, "problem_type": problem}))
    assert load_model("hf/vit", "none").scores == scores
    assert load_model("hf/vit", "none", scores="raw").scores == "raw"


def noise(height: int, width: int) -> Image.Image:
    pixels = torch.randint(
        0, 256, (height, width, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8
    )
    return Image.fromarray(pixels.numpy())


def test_without_an_image_processor_the_size_is_the_configurations(folder: Path) -> None:
    preset = load_model("hf/vit", "none").transforms
    assert (preset.resize, preset.size, preset.mean) == ((64,), (64, 64), (0.5,) * 3)


def test_channels_in_another_order_are_refused(folder: Path) -> None:
    transformers.MobileViTImageProcessor(size={"shortest_edge": 72}, crop_size=64).save_pretrained("vit")
    with pytest.raises(ConfigurationError, match="blue, green, red"):
        load_model("hf/vit", "none")


def test_placeholders_are_not_class_names(folder: Path) -> None:
    content = json.loads(Path("vit/config.json").read_text())
    content["id2label"] = {str(i): f"LABEL_{i}" for i in range(3)}
    Path("vit/config.json").write_text(json.dumps(content))
    assert load_model("hf/vit", "none").categories is None


def test_no_code_of_a_model_is_executed(folder: Path) -> None:
    Path("vit/trap.py").write_text("from pathlib import Path\nPath('sprung').touch()\n")
    content = json.loads(Path("vit/config.json").read_text())
    content["auto_map"] = {"AutoConfig": "trap.Config", "AutoModelForImageClassification": "trap.Model"}
    Path("vit/config.json").write_text(json.dumps(content))
    load_model("hf/vit")
    content["model_type"] = "unknown"
    Path("vit/config.json").write_text(json.dumps(content))
    with pytest.raises(ConfigurationError, match="cannot load the configuration of hf/vit"):
        load_model("hf/vit")
    assert not Path("sprung").exists()
    reference_state = {"model_type": "vit", **{key: content[key] for key in content if key != "model_type"}}
    Path("vit/config.json").write_text(json.dumps({**reference_state, "model_type": "vit"}))
    torch.save({}, "vit/pytorch_model.bin")  # a pickle
    Path("vit/model.safetensors").unlink()
    with pytest.raises(ConfigurationError, match=r"cannot load the weights of hf/vit.*--weights FILE"):
        load_model("hf/vit")


def test_models_that_are_not_image_classifiers_are_refused(folder: Path) -> None:
    transformers.BertConfig().save_pretrained("bert")
    with pytest.raises(ConfigurationError, match="hf/bert is of type bert, which is no classifier"):
        load_model("hf/bert", "none")


def test_a_missing_model_is_reported_in_one_sentence(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot load the configuration of hf/./nothing") as caught:
        load_model("hf/./nothing")
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


TIMM = {"model_type": "timm_wrapper", "architectures": ["TimmWrapperForImageClassification"]}
DETR = {"model_type": "detr", "architectures": ["DetrForObjectDetection"]}
BACKBONE = {"model_type": "timm_backbone", "backbone": "resnet18"}


@pytest.mark.parametrize(
    ("file", "values", "name"),
    [
        (
            "config.json",
            TIMM | {"architecture": "resnet18", "model_args": {"checkpoint_path": "w.pth"}},
            "w.pth",
        ),
        ("config.json", TIMM | {"architecture": "hf-hub:somebody/net"}, "hf-hub:somebody/net"),
        ("config.json", TIMM | {"architecture": "local-dir:elsewhere"}, "local-dir:elsewhere"),
        ("config.json", DETR | {"backbone": "somebody/net", "use_timm_backbone": False}, "somebody/net"),
        ("config.json", DETR | {"backbone_config": BACKBONE | {"backbone_kwargs": {"cache_dir": "c"}}}, "c"),
        (
            "model.safetensors.index.json",
            {"weight_map": {"a": "../vit/model.safetensors"}},
            "../vit/model.saf",
        ),
        ("adapter_config.json", {"base_model_name_or_path": "somebody/net"}, "somebody/net"),
    ],
)
def test_a_model_names_nothing_that_is_not_part_of_it(
    file: str, values: dict[str, object], name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("transformers.AutoConfig.from_pretrained")  # nothing is built of it before
    (folder / "vit" / file).write_text(json.dumps(values))
    with pytest.raises(ConfigurationError, match=f"hf/vit names '{name}.* only what is part of the model"):
        load_model("hf/vit")


def test_a_pipe_among_the_files_of_a_model_is_not_opened(folder: Path) -> None:
    (folder / "vit/config.json").unlink()
    os.mkfifo(folder / "vit/config.json")
    with pytest.raises(ConfigurationError, match=r"'config\.json', which is no regular file"):
        load_model("hf/vit")
