"""The tested networks of timm, Hugging Face and Ultralytics, with random weights as in zoo.py."""

import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import timm
import torch
import transformers
import zoo
from torch import nn

import ebcli
from ebcli.models import default_layer

# Options for small networks and images of 64 x 64 pixels
_TOKENS: dict[str, Any] = {"img_size": 64, "embed_dim": 48, "depth": 4, "num_heads": 3}
_WINDOWS: dict[str, Any] = {
    "img_size": 64,
    "embed_dim": 24,
    "depths": (1, 1, 2, 1),
    "num_heads": (1, 2, 4, 8),
}
TIMM: dict[str, dict[str, Any]] = {
    "timm/resnet18": {},
    "timm/resnetv2_50": {"layers": (1, 1, 2, 1)},
    "timm/seresnet18": {},
    "timm/convnext_atto": {},
    "timm/convnextv2_atto": {},
    "timm/vit_tiny_patch16_224": _TOKENS,
    "timm/vit_base_patch16_clip_224": _TOKENS,
    "timm/vit_medium_patch16_reg4_gap_256": _TOKENS,
    "timm/deit_tiny_distilled_patch16_224": _TOKENS,
    "timm/deit3_small_patch16_224": _TOKENS,
    "timm/beit_base_patch16_224": _TOKENS,
    "timm/mixer_s16_224": {"img_size": 64},
    "timm/swin_tiny_patch4_window7_224": {**_WINDOWS, "window_size": 4},
    "timm/swinv2_tiny_window8_256": {**_WINDOWS, "window_size": 4},
    "timm/efficientnet_b0": {},
    "timm/tf_efficientnetv2_b0": {},
    "timm/efficientnet_lite0": {},
    "timm/mobilenetv3_small_100": {},
    "timm/mobilenetv4_conv_small": {},
    "timm/mobilenetv4_hybrid_medium": {},
    "timm/regnety_002": {},
    "timm/densenet121": {},
    "timm/ese_vovnet19b_dw": {},
}

_VIT: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
_STAGES: dict[str, Any] = {"hidden_sizes": [32, 64, 96, 128], "depths": [1, 1, 2, 1]}
_SWIN: dict[str, Any] = {"embed_dim": 16, "depths": [1, 1, 2, 1], "num_heads": [1, 2, 4, 8], "window_size": 2}
HUGGING_FACE: dict[str, dict[str, Any]] = {
    "hf/resnet": {"embedding_size": 16, **_STAGES},
    "hf/regnet": {"embedding_size": 16, "groups_width": 8, **_STAGES},
    "hf/convnext": _STAGES,
    "hf/convnextv2": _STAGES,
    "hf/vit": _VIT,
    "hf/deit": _VIT,
    "hf/beit": {**_VIT, "use_relative_position_bias": True, "use_mean_pooling": True},
    "hf/dinov2": {**_VIT, "patch_size": 16},
    "hf/dinov2_with_registers": {**_VIT, "patch_size": 16},
    "hf/swin": _SWIN,
    "hf/swinv2": _SWIN,
    "hf/efficientnet": {"width_coefficient": 0.5, "depth_coefficient": 0.5, "hidden_dim": 640},
    "hf/mobilenet_v1": {"depth_multiplier": 0.5},
    "hf/mobilenet_v2": {"depth_multiplier": 0.5},
    "hf/segformer": {"hidden_sizes": [16, 32, 40, 64]},
    "hf/poolformer": _STAGES,
    "hf/pvt_v2": {"hidden_sizes": [16, 32, 40, 64]},
}

ULTRALYTICS = [
    f"ultralytics/{name}"
    for name in (
        *(
            "yolov3-tiny",
            "yolov5n",
            "yolov6n",
            "yolov8n",
            "yolov8n-seg",
            "yolov8n-pose",
            "yolov8n-cls",
            "yolov9t",
        ),
        *("yolov9c-seg", "yolov10n", "yolo11n", "yolo11n-seg", "yolo11n-pose", "yolo11n-cls", "yolo12n"),
        *("yolo26n", "yolo26n-seg", "yolo26n-pose", "yolo26n-cls", "yolo26n-sem"),
    )
]


# Small networks of torchvision, exported to files and loaded from them
FILES = [
    f"files/{name}{suffix}"
    for name in ("resnet18", "mobilenet_v3_small", "convnext_tiny", "vit_b_16")
    for suffix in (".onnx", ".pt2", ".decomposed.pt2")
]


def full(name: str) -> zoo.Specimen:
    """A network of timm for images of its own size, one of Ultralytics for small ones; Hugging Face as in ``small``."""
    if name in HUGGING_FACE:
        return small(name)
    if name in ULTRALYTICS:
        return _ultralytics(name)
    if name in FILES:
        return _in_file(name)
    loaded = ebcli.load_model(name, weights="none")
    side = loaded.transforms.shape[0]
    return zoo.specimen_of(name, loaded.net, (1, 3, side, side), layer=default_layer(loaded))


def small(name: str, *, shifts: bool = True) -> zoo.Specimen:
    """The same network, or one of the same type with few and narrow layers, with a small image."""
    net = hugging_face(name) if name in HUGGING_FACE else _timm(name)
    specimen = zoo.specimen_of(name, net, (1, 3, 64, 64), layer="", shifts=shifts)
    return replace(specimen, layer=default_layer(zoo.as_loaded(specimen)))


def hugging_face(name: str) -> nn.Module:
    """A model loaded from a directory that contains its configuration."""
    config = transformers.AutoConfig.for_model(name.removeprefix("hf/"), num_labels=10, **HUGGING_FACE[name])
    if hasattr(config, "image_size"):
        config.image_size = 64
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        return ebcli.load_model(f"hf/{folder}", weights="none").net


def _in_file(name: str) -> zoo.Specimen:
    """A network for batches of any size, with an image of its size."""
    path = Path(name)
    specimen = zoo.small(path.name.partition(".")[0])
    net, images, free = specimen.net, torch.cat([specimen.inputs] * 2), ({0: torch.export.Dim("batch")},)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file = Path(folder, path.name)
        if path.suffix == ".onnx":
            torch.onnx.export(net, (images,), file, dynamo=True, dynamic_shapes=free, verbose=False)
        else:
            program = torch.export.export(net, (images,), dynamic_shapes=free)
            torch.export.save(program.run_decompositions() if "decomposed" in name else program, file)
        loaded = ebcli.load_model(str(file))
    return zoo.Specimen(name, loaded.net, specimen.inputs, default_layer(loaded))


def _ultralytics(name: str) -> zoo.Specimen:
    """With an image of 128 x 128 pixels, of which detectors explain their best detection."""
    loaded = ebcli.load_model(f"{name}.yaml", preprocessing=ebcli.Preprocessing(resize=128, crop=128))
    specimen = zoo.specimen_of(name, loaded.net, (1, 3, 128, 128), layer=default_layer(loaded))
    if loaded.task == "segmentation":
        return replace(specimen, where=(8, 5))
    if loaded.task == "classification":
        return specimen
    best = ebcli.detections(specimen.net, specimen.inputs, 0)[0][0]
    return replace(specimen, where=(best.anchor,), target=best.label)


def _timm(name: str) -> nn.Module:
    net: nn.Module = timm.create_model(name.removeprefix("timm/"), num_classes=10, **TIMM[name])
    return net
