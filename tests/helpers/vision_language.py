"""Small random vision-language models of every family, in directories as ``save_pretrained`` writes them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers.models.idefics3.configuration_idefics3 import Idefics3VisionConfig
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import (
    Qwen2_5_VLTextConfig,
    Qwen2_5_VLVisionConfig,
)
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLTextConfig, Qwen2VLVisionConfig
from transformers.models.smolvlm.configuration_smolvlm import SmolVLMVisionConfig

from benchmarks.trained.entries import ROPE, chat

_SPECIAL = (
    *"<pad> <unk> <bos> <eos> <image> <fake_token_around_image> <global-img> <end_of_utterance> <img> </img>".split(),
    *"<|image|> <im_patch> <im_col> <im_start> <low_res_im_start> <im_end> <frame_start> <frame_end>".split(),
    *"<im_low> <|vision_start|> <|vision_end|> <|image_pad|> <|video_pad|>".split(),
    *(f"<row_{i}_col_{j}>" for i in range(1, 7) for j in range(1, 7)),
)
_WORDS = "describe what is on the table a red cup dog cat of and . ? : user assistant yes no".split()
IDS = {word: i for i, word in enumerate((*_SPECIAL, *_WORDS))}
SIZE = {"height": 32, "width": 32}
TEXT: dict[str, Any] = {
    "vocab_size": len(IDS),
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "patch_size": 8,
    "image_size": 32,
}
MERGED = {"depth": 2, "hidden_size": 32, "out_hidden_size": 32, "intermediate_size": 48, "num_heads": 2}
MERGED |= {"patch_size": 4, "spatial_merge_size": 2}  # of patches, 2 x 2 of which become one token
PINPOINTS = [[32, 64], [64, 32], [64, 64]]


def tokenizer(*, closes: bool = False, **special: str) -> Any:
    """A tokenizer of words, with names of special tokens; if it `closes`, it ends each text, as BERT's."""
    words = Tokenizer(models.WordLevel(IDS, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    if closes:
        ends = [("<bos>", IDS["<bos>"]), ("<eos>", IDS["<eos>"])]
        words.post_processor = processors.TemplateProcessing("<bos> $A <eos>", special_tokens=ends)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="<pad>",
        unk_token="<unk>",
        bos_token="<bos>",
        eos_token="<eos>",
        extra_special_tokens={f"token_{i}": token for i, token in enumerate(_SPECIAL[4:])} | special,
    )


def word_pieces() -> Any:
    """A tokenizer that makes two tokens of a plural."""
    words = tokenizer()
    pieces = {"##s" if word == "yes" else word: token for word, token in IDS.items()}
    words.backend_tokenizer.model = models.WordPiece(pieces, unk_token="<unk>")
    words.backend_tokenizer.decoder = decoders.WordPiece()
    return words


def byte_level_tokenizer(texts: list[str]) -> Any:
    """A tokenizer as GPT-2's, trained with some texts."""
    pairs = Tokenizer(models.BPE())
    pairs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pairs.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        special_tokens=list(_SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    pairs.train_from_iterator(texts, trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=pairs, pad_token="<pad>", extra_special_tokens={"image_token": "<image>"}
    )


def _clip() -> Any:
    return transformers.CLIPVisionConfig(**VISION, projection_dim=32)


_LLAVA = {"patch_size": 8, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}


def _llava() -> tuple[Any, Any]:
    config = transformers.LlavaConfig(
        vision_config=_clip(), text_config=transformers.LlamaConfig(**TEXT), image_token_id=IDS["<image>"]
    )
    images = transformers.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=SIZE)
    return config, transformers.LlavaProcessor(images, tokenizer(), **_LLAVA, chat_template=chat("<image>"))


def _llava_next() -> tuple[Any, Any]:
    config = transformers.LlavaNextConfig(
        vision_config=_clip(),
        text_config=transformers.LlamaConfig(**TEXT),
        image_token_id=IDS["<image>"],
        image_grid_pinpoints=PINPOINTS,
    )
    images = transformers.LlavaNextImageProcessor(
        size={"shortest_edge": 32}, crop_size=SIZE, image_grid_pinpoints=PINPOINTS
    )
    return config, transformers.LlavaNextProcessor(
        images, tokenizer(), **_LLAVA, chat_template=chat("<image>")
    )


def qwen(config_class: Any, text_class: Any, vision: Any, processor_class: Any) -> tuple[Any, Any]:
    config = config_class(
        text_config=text_class(**TEXT, rope_parameters=ROPE),
        vision_config=vision,
        image_token_id=IDS["<|image_pad|>"],
        video_token_id=IDS["<|video_pad|>"],
        vision_start_token_id=IDS["<|vision_start|>"],
        vision_end_token_id=IDS["<|vision_end|>"],
    )
    images = transformers.Qwen2VLImageProcessor(
        patch_size=4, merge_size=2, temporal_patch_size=2, min_pixels=16 * 16, max_pixels=40 * 40
    )
    videos = transformers.Qwen2VLVideoProcessor(patch_size=4, merge_size=2)
    template = chat("<|vision_start|><|image_pad|><|vision_end|>")
    return config, processor_class(images, tokenizer(), videos, chat_template=template)


def _qwen2_vl() -> tuple[Any, Any]:
    vision = Qwen2VLVisionConfig(
        depth=2, embed_dim=32, hidden_size=32, num_heads=2, mlp_ratio=2, patch_size=4, spatial_merge_size=2
    )
    return qwen(transformers.Qwen2VLConfig, Qwen2VLTextConfig, vision, transformers.Qwen2VLProcessor)


def _qwen2_5_vl() -> tuple[Any, Any]:
    vision = Qwen2_5_VLVisionConfig(**MERGED, window_size=16, fullatt_block_indexes=[1])
    return qwen(transformers.Qwen2_5_VLConfig, Qwen2_5_VLTextConfig, vision, transformers.Qwen2_5_VLProcessor)


def _tiled(config_class: Any, vision: Any) -> Any:
    text = transformers.LlamaConfig(**TEXT)
    return config_class(
        vision_config=vision, text_config=text, image_token_id=IDS["<image>"], scale_factor=2, pad_token_id=0
    )


def _idefics3() -> tuple[Any, Any]:
    images = transformers.Idefics3ImageProcessor(
        size={"longest_edge": 64}, max_image_size={"longest_edge": 32}
    )
    processor = transformers.Idefics3Processor(
        images, tokenizer(), image_seq_len=4, chat_template=chat("<image>")
    )
    return _tiled(transformers.Idefics3Config, Idefics3VisionConfig(**VISION)), processor


def _smolvlm() -> tuple[Any, Any]:
    images = transformers.SmolVLMImageProcessor(
        size={"longest_edge": 64}, max_image_size={"longest_edge": 32}
    )
    processor = transformers.SmolVLMProcessor(
        images,
        tokenizer(),
        transformers.SmolVLMVideoProcessor(),
        image_seq_len=4,
        chat_template=chat("<image>"),
    )
    return _tiled(transformers.SmolVLMConfig, SmolVLMVisionConfig(**VISION)), processor


def _paligemma() -> tuple[Any, Any]:
    config = transformers.PaliGemmaConfig(
        vision_config=transformers.SiglipVisionConfig(**VISION, projection_dim=32),
        text_config=transformers.GemmaConfig(**TEXT, head_dim=16),
        image_token_id=IDS["<image>"],
        projection_dim=32,
        hidden_size=32,
    )
    images = transformers.SiglipImageProcessor(size=SIZE)
    images.image_seq_length = 16
    return config, transformers.PaliGemmaProcessor(images, tokenizer())


def _blip() -> tuple[Any, Any]:
    own = {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}
    text = transformers.BlipTextConfig(
        **{name: value for name, value in TEXT.items() if name in own},
        encoder_hidden_size=48,
        projection_dim=32,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=IDS["user"],
        eos_token_id=3,
        sep_token_id=3,
    )
    # wider than the text part, as in BLIP large
    vision = transformers.BlipVisionConfig(**VISION | {"hidden_size": 48}, projection_dim=32)
    config = transformers.BlipConfig(
        text_config=text.to_dict(), vision_config=vision.to_dict(), projection_dim=32
    )
    return config, transformers.BlipProcessor(
        transformers.BlipImageProcessor(size=SIZE), tokenizer(closes=True)
    )


FAMILIES: dict[str, Callable[[], tuple[Any, Any]]] = {
    "llava": _llava,
    "llava_next": _llava_next,
    "qwen2_vl": _qwen2_vl,
    "qwen2_5_vl": _qwen2_5_vl,
    "smolvlm": _smolvlm,
    "idefics3": _idefics3,
    "paligemma": _paligemma,
    "blip": _blip,
}


def save(family: str, folder: Path) -> None:
    """Write a model with random weights and its processor."""
    torch.manual_seed(0)
    from vision_language_more import MORE

    config, processor = (FAMILIES | MORE)[family]()
    net = transformers.AutoModelForImageTextToText.from_config(config)
    with torch.no_grad():
        for parameter in net.parameters():
            scale = 1.5 / parameter[0].numel() ** 0.5 if parameter.ndim > 1 else 0.1
            parameter.copy_(torch.randn_like(parameter) * scale + parameter * (parameter.ndim == 1))
    net.save_pretrained(folder)
    processor.save_pretrained(folder)
