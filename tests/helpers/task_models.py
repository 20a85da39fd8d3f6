"""Small random networks of transformers for each task, saved as networks on the hub are, with their processors."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as hf

NAMES = ("cat", "dog", "cup", "fox", "pen")
TEXTS = ("a red cup", "cat")
SIDE, FRAMES = 128, 4
_WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] . ? a cup cat red of coffee".split()

_CLASSES: dict[str, Any] = {
    "id2label": dict(enumerate(NAMES)),
    "label2id": {name: k for k, name in enumerate(NAMES)},
}
_TOKENS: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}
_CLIPS: dict[str, Any] = {"image_size": 64, "num_frames": FRAMES, **_TOKENS, **_CLASSES}
_STAGES: dict[str, Any] = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}
_QUERIES: dict[str, Any] = {
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "d_model"), 32),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **{"decoder_layers": 2, "num_queries": 12},
}
_SQUARE = {"size": {"height": SIDE, "width": SIDE}}
_WHOLE = {"size": {"shortest_edge": SIDE, "longest_edge": 200}}
_FRAMES = {"size": {"shortest_edge": 72}, "crop_size": {"height": 64, "width": 64}}


def _resnet(kind: Any = hf.ResNetConfig, stages: tuple[int, ...] = (4,)) -> Any:
    names = [f"stage{stage}" for stage in stages]
    return kind(embedding_size=8, **_STAGES, layer_type="basic", out_features=names)


def _swin(stages: tuple[int, ...] = (1, 2, 3, 4)) -> Any:
    names = [f"stage{stage}" for stage in stages]
    sizes = {"depths": [1] * 4, "num_heads": [1, 2, 2, 4], "window_size": 2}
    return hf.SwinConfig(image_size=64, embed_dim=16, **sizes, out_features=names)


def _detr(kind: str, stages: tuple[int, ...] = (4,), **more: Any) -> Any:
    config = getattr(hf, f"{kind}Config")
    return config(
        use_timm_backbone=False,
        backbone_config=_resnet(stages=stages),
        encoder_layers=1,
        **_QUERIES,
        **more,
        **_CLASSES,
    )


def _rt_detr() -> Any:
    backbone = _resnet(hf.RTDetrResNetConfig, (2, 3, 4))
    channels = {
        "encoder_in_channels": [16, 24, 32],
        "decoder_in_channels": [32] * 3,
        "encoder_hidden_dim": 32,
    }
    return hf.RTDetrConfig(backbone_config=backbone, **channels, **_QUERIES, **_CLASSES)


def _mask2former() -> Any:
    widths = dict.fromkeys(
        ("feature_size", "mask_feature_size", "hidden_dim", "encoder_feedforward_dim", "dim_feedforward"), 32
    )
    depths = {"encoder_layers": 1, "decoder_layers": 3, "num_attention_heads": 2, "num_queries": 9}
    return hf.Mask2FormerConfig(backbone_config=_swin(), **widths, **depths, **_CLASSES)


def _maskformer() -> Any:
    decoder = hf.DetrConfig(use_timm_backbone=False, backbone_config=_resnet(), **_QUERIES)
    widths = {"fpn_feature_size": 32, "mask_feature_size": 32}
    return hf.MaskFormerConfig(backbone_config=_swin(), **widths, decoder_config=decoder, **_CLASSES)


def _upernet() -> Any:
    stages = [f"stage{i}" for i in (1, 2, 3, 4)]
    backbone = hf.ConvNextConfig(**_STAGES, out_features=stages)
    return hf.UperNetConfig(backbone_config=backbone, hidden_size=16, use_auxiliary_head=False, **_CLASSES)


def _grounding_dino() -> Any:
    text = hf.BertConfig(vocab_size=len(_WORDS), **_TOKENS)
    return hf.GroundingDinoConfig(
        backbone_config=_swin((2, 3, 4)), text_config=text, num_feature_levels=4, **_QUERIES
    )


def _owl_vit() -> Any:
    special = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    text = {"vocab_size": len(_WORDS), "max_position_embeddings": 16, **special, **_TOKENS}
    vision = {"image_size": SIDE, "patch_size": 16, **_TOKENS}
    return hf.OwlViTConfig(text_config=text, vision_config=vision, projection_dim=32)


# name: the network's class, its configuration, its image processor's class and options
NETWORKS: dict[str, tuple[str, Callable[[], Any], str, dict[str, Any]]] = {
    "VideoMAE": ("VideoMAEForVideoClassification", lambda: hf.VideoMAEConfig(**_CLIPS), "VideoMAE", _FRAMES),
    "TimeSformer": (
        "TimesformerForVideoClassification",
        lambda: hf.TimesformerConfig(**_CLIPS),
        "VideoMAE",
        _FRAMES,
    ),
    "ViViT": ("VivitForVideoClassification", lambda: hf.VivitConfig(**_CLIPS), "Vivit", _FRAMES),
    "SegFormer": (
        "SegformerForSemanticSegmentation",
        lambda: hf.SegformerConfig(
            **_STAGES, num_attention_heads=[1, 1, 2, 2], decoder_hidden_size=32, **_CLASSES
        ),
        "Segformer",
        _SQUARE,
    ),
    "UperNet": ("UperNetForSemanticSegmentation", _upernet, "Segformer", _SQUARE),
    "MaskFormer": ("MaskFormerForInstanceSegmentation", _maskformer, "MaskFormer", _WHOLE),
    "Mask2Former": ("Mask2FormerForUniversalSegmentation", _mask2former, "Mask2Former", _SQUARE),
    "DETR": ("DetrForObjectDetection", lambda: _detr("Detr"), "Detr", _WHOLE),
    "Conditional DETR": (
        "ConditionalDetrForObjectDetection",
        lambda: _detr("ConditionalDetr"),
        "ConditionalDetr",
        _WHOLE,
    ),
    "Deformable DETR": (
        "DeformableDetrForObjectDetection",
        lambda: _detr("DeformableDetr", (2, 3, 4), num_feature_levels=3),
        "DeformableDetr",
        _WHOLE,
    ),
    "RT-DETR": ("RTDetrForObjectDetection", _rt_detr, "RTDetr", _SQUARE),
    "YOLOS": (
        "YolosForObjectDetection",
        lambda: hf.YolosConfig(image_size=[SIDE, 160], num_detection_tokens=12, **_TOKENS, **_CLASSES),
        "Yolos",
        _WHOLE,
    ),
    "Grounding DINO": ("GroundingDinoForObjectDetection", _grounding_dino, "GroundingDino", _WHOLE),
    "OWL-ViT": ("OwlViTForObjectDetection", _owl_vit, "OwlViT", _SQUARE),
}
WITH_TEXTS = ("Grounding DINO", "OWL-ViT")


def saved(name: str, parent: Path) -> Path:
    """The directory of a network, its processor and its tokenizer, which is written once."""
    folder = parent / name.lower().replace(" ", "-")
    if folder.exists():
        return folder
    network, config, processor, options = NETWORKS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        getattr(hf, network)(config()).save_pretrained(folder)
    getattr(hf, f"{processor}ImageProcessor")(**options).save_pretrained(folder)
    if name in WITH_TEXTS:
        hf.BertTokenizer({word: k for k, word in enumerate(_WORDS)}).save_pretrained(folder)
    return folder
