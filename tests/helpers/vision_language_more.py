"""More families of vision-language models, small and random, see `vision_language`."""

from collections.abc import Callable
from typing import Any

import transformers
from transformers.models.glm4v.configuration_glm4v import Glm4vTextConfig, Glm4vVisionConfig
from transformers.models.internvl.configuration_internvl import InternVLVisionConfig
from transformers.models.mllama.configuration_mllama import MllamaTextConfig, MllamaVisionConfig
from transformers.models.molmo2.configuration_molmo2 import (
    Molmo2AdapterConfig,
    Molmo2TextConfig,
    Molmo2VisionConfig,
)
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLTextConfig, Qwen3VLVisionConfig
from vision_language import IDS, MERGED, PINPOINTS, SIZE, TEXT, VISION, qwen, tokenizer

from benchmarks.trained.entries import ROPE, chat

_IMAGE, _VIDEO = IDS["<image>"], IDS["<|video_pad|>"]
Parts = tuple[Any, Any]  # configuration and processor


def _qwen3_vl() -> Parts:
    vision = Qwen3VLVisionConfig(**MERGED, deepstack_visual_indexes=[0, 1], num_position_embeddings=64)
    return qwen(transformers.Qwen3VLConfig, Qwen3VLTextConfig, vision, transformers.Qwen3VLProcessor)


def _internvl() -> Parts:
    config = transformers.InternVLConfig(
        vision_config=InternVLVisionConfig(**VISION | {"image_size": [32, 32], "patch_size": [8, 8]}),
        text_config=transformers.Qwen2Config(**TEXT),
        image_token_id=_IMAGE,
        downsample_ratio=0.5,
    )
    words = tokenizer(
        start_image_token="<img>",
        end_image_token="</img>",
        context_image_token="<image>",
        video_token="<|video_pad|>",
    )
    images = transformers.GotOcr2ImageProcessor(size=SIZE, crop_to_patches=True, min_patches=1, max_patches=4)
    videos = transformers.InternVLVideoProcessor()
    return config, transformers.InternVLProcessor(
        images, words, videos, image_seq_length=4, chat_template=chat("<image>")
    )


def _gemma3() -> Parts:
    config = transformers.Gemma3Config(
        vision_config=transformers.SiglipVisionConfig(**VISION),
        text_config=transformers.Gemma3TextConfig(**TEXT, head_dim=16, query_pre_attn_scalar=16),
        image_token_id=_IMAGE,
        boi_token_id=IDS["<img>"],
        eoi_token_id=IDS["</img>"],
        mm_tokens_per_image=4,
    )
    words = tokenizer(boi_token="<img>", eoi_token="</img>", image_token="<image>")
    images = transformers.Gemma3ImageProcessor(size=SIZE)
    return config, transformers.Gemma3Processor(
        images, words, image_seq_length=4, chat_template=chat("<img>")
    )


def _llava_onevision() -> Parts:
    config = transformers.LlavaOnevisionConfig(
        vision_config=transformers.SiglipVisionConfig(**VISION, vision_use_head=False),
        text_config=transformers.Qwen2Config(**TEXT),
        image_token_id=_IMAGE,
        video_token_id=_VIDEO,
        image_grid_pinpoints=PINPOINTS,
        vision_feature_layer=-1,
    )
    images = transformers.LlavaOnevisionImageProcessor(size=SIZE, image_grid_pinpoints=PINPOINTS)
    return config, transformers.LlavaOnevisionProcessor(
        images,
        tokenizer(),
        transformers.LlavaOnevisionVideoProcessor(),
        num_image_tokens=16,
        vision_feature_select_strategy="full",
        video_token="<|video_pad|>",
        chat_template=chat("<image>"),
    )


def _mistral3() -> Parts:
    vision = transformers.PixtralVisionConfig(**VISION | {"image_size": 64}, head_dim=16)
    config = transformers.Mistral3Config(
        vision_config=vision,
        text_config=transformers.MistralConfig(**TEXT, head_dim=16),
        image_token_index=_IMAGE,
        image_token_id=_IMAGE,
        spatial_merge_size=2,
    )
    images = transformers.PixtralImageProcessor(size={"longest_edge": 48}, patch_size=8)
    return config, transformers.PixtralProcessor(
        images,
        tokenizer(),
        patch_size=8,
        spatial_merge_size=2,
        image_token="<image>",
        image_break_token="<img>",
        image_end_token="</img>",
        chat_template=chat("<image>"),
    )


def _glm4v() -> Parts:
    vision = Glm4vVisionConfig(**MERGED | {"patch_size": 8}, image_size=32)
    rope = ROPE | {"partial_rotary_factor": 1.0}
    config = transformers.Glm4vConfig(
        vision_config=vision,
        text_config=Glm4vTextConfig(**TEXT, rope_parameters=rope),
        image_token_id=_IMAGE,
        video_token_id=_VIDEO,
        image_start_token_id=IDS["<img>"],
        image_end_token_id=IDS["</img>"],
    )
    words = tokenizer(image_token="<image>", video_token="<|video_pad|>")
    pixels = {"shortest_edge": 16 * 16 * 2, "longest_edge": 48 * 48 * 2}
    images = transformers.Glm4vImageProcessor(patch_size=8, merge_size=2, size=pixels)
    videos = transformers.Glm4vVideoProcessor(patch_size=8, merge_size=2)
    return config, transformers.Glm4vProcessor(
        images, words, videos, chat_template=chat("<img> <image> </img>")
    )


def _aya_vision() -> Parts:
    config = transformers.AyaVisionConfig(
        vision_config=transformers.SiglipVisionConfig(**VISION),
        text_config=transformers.Cohere2Config(**TEXT),
        image_token_id=_IMAGE,
        downsample_factor=2,
        vision_feature_layer=-1,
        alignment_intermediate_size=48,
    )
    images = transformers.GotOcr2ImageProcessor(size=SIZE, crop_to_patches=True, min_patches=1, max_patches=4)
    return config, transformers.AyaVisionProcessor(
        images,
        tokenizer(),
        patch_size=8,
        img_size=32,
        downsample_factor=2,
        img_patch_token="<image>",
        image_token="<img>",
        start_of_img_token="<|vision_start|>",
        end_of_img_token="<|vision_end|>",
        img_line_break_token="</img>",
        chat_template=chat("<img>"),
    )


def _molmo2() -> Parts:
    config = transformers.Molmo2Config(
        text_config=Molmo2TextConfig(**TEXT, head_dim=16, additional_vocab_size=8),
        vision_config=Molmo2VisionConfig(
            **VISION | {"image_size": [32, 32]}, num_key_value_heads=2, head_dim=16
        ),
        adapter_config=Molmo2AdapterConfig(
            hidden_size=32,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=16,
            intermediate_size=48,
            text_hidden_size=32,
            vision_feature_layer=[1, 0],
        ),
        image_patch_id=IDS["<im_patch>"],
        image_start_token_id=IDS["<im_start>"],
        image_end_token_id=IDS["<im_end>"],
    )
    words = tokenizer(image_token="<|image|>", video_token="<|video_pad|>")
    images = transformers.Molmo2ImageProcessor(
        size=SIZE, patch_size=8, max_crops=4, overlap_margins=[1, 1], pooling_size=[2, 2]
    )
    videos = transformers.Molmo2VideoProcessor()
    return config, transformers.Molmo2Processor(images, videos, words, chat_template=chat("<|image|>"))


def _instructblip() -> Parts:
    vision = transformers.InstructBlipVisionConfig(**VISION)
    qformer = transformers.InstructBlipQFormerConfig(
        vocab_size=len(IDS),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        encoder_hidden_size=32,
    )
    text = transformers.OPTConfig(
        vocab_size=len(IDS),
        hidden_size=32,
        ffn_dim=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        word_embed_proj_dim=32,
        max_position_embeddings=512,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=3,
    )
    config = transformers.InstructBlipConfig(
        vision_config=vision.to_dict(),
        qformer_config=qformer.to_dict(),
        text_config=text.to_dict(),
        num_query_tokens=4,
        image_token_index=_IMAGE,
    )
    return config, transformers.InstructBlipProcessor(
        transformers.BlipImageProcessor(size=SIZE), tokenizer(), tokenizer(), num_query_tokens=4
    )


def _mllama() -> Parts:
    vision = MllamaVisionConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        attention_heads=2,
        num_global_layers=1,
        patch_size=8,
        image_size=32,
        intermediate_layers_indices=[0, 1],
        vision_output_dim=96,
        max_num_tiles=4,
    )
    text = MllamaTextConfig(**TEXT | {"num_hidden_layers": 3}, cross_attention_layers=[1])
    config = transformers.MllamaConfig(vision_config=vision, text_config=text, image_token_index=_IMAGE)
    images = transformers.MllamaImageProcessor(size=SIZE, max_image_tiles=4)
    return config, transformers.MllamaProcessor(
        images, tokenizer(image_token="<image>"), chat_template=chat("<image>")
    )


MORE: dict[str, Callable[[], Parts]] = {
    "qwen3_vl": _qwen3_vl,
    "internvl": _internvl,
    "gemma3": _gemma3,
    "llava_onevision": _llava_onevision,
    "mistral3": _mistral3,
    "glm4v": _glm4v,
    "aya_vision": _aya_vision,
    "molmo2": _molmo2,
    "instructblip": _instructblip,
    "mllama": _mllama,
}
