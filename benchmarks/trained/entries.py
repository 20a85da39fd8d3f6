"""Small vision-language models, one for each way in which a photo enters the text part, that say what they see.

    python -m benchmarks.trained.entries [KIND ...]    # train, explain, and write docs/evidence/entries.csv

A photo shows two colored discs on gray noise, one in each half. The answer is "red left of blue ." So the right place
of each color is known, and the words "of" and "." follow from the words before them. Each model is transformers' own,
with few and narrow layers, and gets its photos from its own processor.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
import transformers
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from torch.nn import functional as F
from transformers.models.idefics2.configuration_idefics2 import Idefics2PerceiverConfig, Idefics2VisionConfig
from transformers.models.mllama.configuration_mllama import MllamaTextConfig, MllamaVisionConfig
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLTextConfig, Qwen3VLVisionConfig
from transformers.models.smolvlm.configuration_smolvlm import SmolVLMVisionConfig

import ebcli
from benchmarks import evidence

SIDE = 64
COLORS = {
    "red": (220, 40, 40),
    "green": (40, 180, 60),
    "blue": (50, 70, 220),
    "yellow": (230, 210, 40),
    "black": (10, 10, 10),
    "white": (250, 250, 250),
}
RADIUS = 8
QUESTION = "describe"
STEPS = {"projector": 600, "resampler": 1600, "cross-attention": 600, "deepstack": 500, "tiles": 600}
BATCH = 32
RATE = 2e-3
SEED = 5
PHOTOS = 24

_SPECIAL = (
    *"<pad> <unk> <bos> <eos> <image> <|image|> <fake_token_around_image> <global-img>".split(),
    *"<end_of_utterance> <|vision_start|> <|vision_end|> <|image_pad|> <|video_pad|>".split(),
    *(f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)),
)
WORDS = {
    word: number
    for number, word in enumerate((*_SPECIAL, *COLORS, "left", "of", ".", "user", "assistant", ":", QUESTION))
}
_WIDTH = 64
_TEXT: dict[str, Any] = {
    "vocab_size": len(WORDS),
    "hidden_size": _WIDTH,
    "intermediate_size": 2 * _WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
    "pad_token_id": WORDS["<pad>"],
    "bos_token_id": WORDS["<bos>"],
    "eos_token_id": WORDS["<eos>"],
}
_VISION: dict[str, Any] = {
    "hidden_size": _WIDTH,
    "intermediate_size": 2 * _WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "patch_size": 8,
    "image_size": SIDE,
}
ROPE = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}
_SIZE = {"height": SIDE, "width": SIDE}


@dataclass(frozen=True)
class Scene:
    """A photo of two discs.

    Attributes:
        photo: RGB, 64 x 64 pixels.
        colors: the names of the left and of the right color.
        discs: (2, 64, 64), the pixels of both discs.
    """

    photo: Image.Image
    colors: tuple[str, str]
    discs: Tensor

    @property
    def answer(self) -> str:
        left, right = self.colors
        return f"{left} left of {right} ."


def scenes(count: int, generator: torch.Generator) -> list[Scene]:
    """Photos of two discs of different colors, one in each half, at random heights."""
    return [_scene(generator) for _ in range(count)]


def _scene(generator: torch.Generator) -> Scene:
    pixels = 128 + 20 * torch.randn(SIDE, SIDE, 1, generator=generator).expand(-1, -1, 3).clone()
    names = list(COLORS)
    chosen = [names[number] for number in torch.randperm(len(names), generator=generator)[:2].tolist()]
    rows, columns = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    discs = torch.zeros(2, SIDE, SIDE, dtype=torch.bool)
    for half, name in enumerate(chosen):
        row = int(torch.randint(RADIUS, SIDE - RADIUS, (), generator=generator))
        column = int(torch.randint(RADIUS, SIDE // 2 - RADIUS, (), generator=generator)) + half * SIDE // 2
        discs[half] = (rows - row) ** 2 + (columns - column) ** 2 <= RADIUS**2
        pixels[discs[half]] = torch.tensor(COLORS[name], dtype=torch.float32)
    photo = Image.fromarray(pixels.clamp(0, 255).byte().numpy())
    return Scene(photo, (chosen[0], chosen[1]), discs)


def _tokenizer(image: str) -> Any:
    words = Tokenizer(models.WordLevel(WORDS, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="<pad>",
        unk_token="<unk>",
        bos_token="<bos>",
        eos_token="<eos>",
        additional_special_tokens=list(_SPECIAL[4:]),
        extra_special_tokens={
            "image_token": image,
            "image_boundary_token": "<fake_token_around_image>",
            "end_of_utterance_token": "<end_of_utterance>",
        },
    )


def chat(image: str) -> str:
    """A template of chats in which something stands for a photo."""
    part = "{% if part['type'] == 'image' %}" + image + " {% else %}{{ part['text'] }} {% endif %}"
    return (
        "{% for message in messages %}user : {% for part in message['content'] %}"
        + part
        + "{% endfor %}{% endfor %}assistant :"
    )


def projector() -> tuple[Any, Any]:
    """LLaVA: patches become tokens of the text, by two linear layers."""
    config = transformers.LlavaConfig(
        vision_config=transformers.SiglipVisionConfig(**_VISION, vision_use_head=False),
        text_config=transformers.LlamaConfig(**_TEXT),
        image_token_id=WORDS["<image>"],
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
    processor = transformers.LlavaProcessor(
        transformers.SiglipImageProcessor(size=_SIZE),
        _tokenizer("<image>"),
        patch_size=8,
        vision_feature_select_strategy="full",
        chat_template=chat("<image>"),
    )
    return config, processor


def resampler() -> tuple[Any, Any]:
    """Idefics 2: a few queries read all patches by attention, and become tokens of the text."""
    perceiver = Idefics2PerceiverConfig(
        hidden_size=_WIDTH,
        resampler_n_latents=16,
        resampler_depth=2,
        resampler_n_heads=4,
        resampler_head_dim=16,
        num_key_value_heads=4,
    )
    config = transformers.Idefics2Config(
        vision_config=Idefics2VisionConfig(**_VISION),
        text_config=transformers.MistralConfig(**_TEXT),
        perceiver_config=perceiver,
        image_token_id=WORDS["<image>"],
    )
    processor = transformers.Idefics2Processor(
        transformers.Idefics2ImageProcessor(
            size={"shortest_edge": SIDE, "longest_edge": SIDE}, do_image_splitting=False
        ),
        _tokenizer("<image>"),
        image_seq_len=16,
        chat_template=chat("<image>"),
    )
    return config, processor


def cross_attention() -> tuple[Any, Any]:
    """Llama 3.2 Vision: a layer of the text part reads all patches by attention."""
    vision = MllamaVisionConfig(
        hidden_size=_WIDTH,
        intermediate_size=2 * _WIDTH,
        num_hidden_layers=2,
        num_global_layers=1,
        attention_heads=4,
        image_size=SIDE,
        patch_size=8,
        max_num_tiles=1,
        supported_aspect_ratios=[[1, 1]],
        intermediate_layers_indices=[0, 1],
        vision_output_dim=3 * _WIDTH,
    )
    text = MllamaTextConfig(**_TEXT | {"num_hidden_layers": 3}, cross_attention_layers=[1])
    config = transformers.MllamaConfig(
        vision_config=vision, text_config=text, image_token_index=WORDS["<|image|>"]
    )
    processor = transformers.MllamaProcessor(
        transformers.MllamaImageProcessor(size=_SIZE, max_image_tiles=1),
        _tokenizer("<|image|>"),
        chat_template=chat("<|image|>"),
    )
    return config, processor


def deepstack() -> tuple[Any, Any]:
    """Qwen3-VL: patches become tokens, and earlier features of them are added in the first layers of the text part."""
    vision = Qwen3VLVisionConfig(
        depth=2,
        hidden_size=_WIDTH,
        out_hidden_size=_WIDTH,
        intermediate_size=2 * _WIDTH,
        num_heads=4,
        patch_size=4,
        spatial_merge_size=2,
        num_position_embeddings=256,
        deepstack_visual_indexes=[0, 1],
    )
    config = transformers.Qwen3VLConfig(
        text_config=Qwen3VLTextConfig(**_TEXT, head_dim=16, rope_parameters=ROPE),
        vision_config=vision,
        image_token_id=WORDS["<|image_pad|>"],
        video_token_id=WORDS["<|video_pad|>"],
        vision_start_token_id=WORDS["<|vision_start|>"],
        vision_end_token_id=WORDS["<|vision_end|>"],
    )
    images = transformers.Qwen2VLImageProcessor(
        patch_size=4, merge_size=2, temporal_patch_size=2, min_pixels=SIDE * SIDE, max_pixels=SIDE * SIDE
    )
    processor = transformers.Qwen3VLProcessor(
        images,
        _tokenizer("<|image_pad|>"),
        transformers.Qwen3VLVideoProcessor(patch_size=4, merge_size=2),
        chat_template=chat("<|vision_start|> <|image_pad|> <|vision_end|>"),
    )
    return config, processor


def tiles() -> tuple[Any, Any]:
    """SmolVLM: four tiles of the photo and a small copy of it."""
    half = SIDE // 2
    config = transformers.SmolVLMConfig(
        vision_config=SmolVLMVisionConfig(**_VISION | {"image_size": half}),
        text_config=transformers.LlamaConfig(**_TEXT),
        image_token_id=WORDS["<image>"],
        scale_factor=2,
        pad_token_id=WORDS["<pad>"],
    )
    processor = transformers.SmolVLMProcessor(
        transformers.SmolVLMImageProcessor(
            size={"longest_edge": SIDE}, max_image_size={"longest_edge": half}
        ),
        _tokenizer("<image>"),
        transformers.SmolVLMVideoProcessor(),
        image_seq_len=4,
        chat_template=chat("<image>"),
    )
    return config, processor


KINDS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "projector": projector,
    "resampler": resampler,
    "cross-attention": cross_attention,
    "deepstack": deepstack,
    "tiles": tiles,
}


def encode(processor: Any, batch: list[Scene], with_answers: bool = True) -> dict[str, Tensor]:
    """What a model gets for photos, the question and, if asked, the answers."""
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": QUESTION}]}]
    prompt = processor.apply_chat_template(messages, add_generation_prompt=True)
    texts = [f"{prompt} {scene.answer} <eos>" if with_answers else prompt for scene in batch]
    encoded = processor(images=[[scene.photo] for scene in batch], text=texts, return_tensors="pt")
    return dict(encoded)


def train(kind: str) -> tuple[Any, Any]:
    """A trained model and its processor."""
    steps = STEPS[kind]
    torch.manual_seed(0)
    config, processor = KINDS[kind]()
    net = transformers.AutoModelForImageTextToText.from_config(config)
    _open_gates(net)
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(net.parameters(), RATE, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps, pct_start=0.1)
    length = len("red left of blue .".split()) + 1
    for step in range(steps):
        inputs = encode(processor, scenes(BATCH, generator))
        labels = inputs["input_ids"][:, -length:]
        logits = net.train()(**inputs).logits[:, -length - 1 : -1]
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            print(f"{kind}, step {step + 1}: loss {loss.item():.3f}", flush=True)
    return net.eval(), processor


def _open_gates(net: torch.nn.Module) -> None:
    """Let gates of cross-attention, which start closed, start half open: training is short."""
    for name, parameter in net.named_parameters():
        if name.endswith("_gate") or "gate_attn" in name or "gate_ffn" in name:
            torch.nn.init.constant_(parameter, 0.5)


@torch.no_grad()
def accuracy(net: Any, processor: Any, count: int = 128) -> float:
    """The share of new photos that are described without a mistake."""
    batch = scenes(count, torch.Generator().manual_seed(1))
    inputs = encode(processor, batch)
    length = len(batch[0].answer.split()) + 1
    written = net(**inputs).logits[:, -length - 1 : -1].argmax(2)
    return float((written == inputs["input_ids"][:, -length:]).all(1).float().mean())


def measure(kind: str, net: Any, processor: Any, count: int = PHOTOS) -> dict[str, Any]:
    """Where the maps of colors lie, and how much of each word's evidence is in the photo.

    ``share`` is the mean share of a color's map in the half of its disc, and ``disc`` that on the disc itself.
    ``colors`` and ``grammar`` are the mean shares of evidence in the photo, of colors and of the word "of".
    """
    in_half, on_disc, from_photo, of_grammar = [], [], [], []
    for scene in scenes(count, torch.Generator().manual_seed(SEED)):
        answer = ebcli.ask(
            net, scene.photo, QUESTION, processor=processor, answer=scene.answer, all_words=True
        )
        maps = torch.from_numpy(answer.heatmap((SIDE, SIDE)))
        for word, map_, share in zip(answer.words, maps, answer.shares, strict=True):
            if word in scene.colors:
                half = scene.colors.index(word)
                side = slice(half * SIDE // 2, (half + 1) * SIDE // 2)
                in_half.append(float(map_[:, side].sum() / map_.sum()))
                on_disc.append(float(map_[scene.discs[half]].sum() / map_.sum()))
                from_photo.append(share)
            elif word == "of":
                of_grammar.append(share)
    return {
        "entry": kind,
        "network": type(net).__name__.removesuffix("ForConditionalGeneration"),
        "accuracy": f"{accuracy(net, processor):.3f}",
        "share": f"{fmean(in_half):.3f}",
        "disc": f"{fmean(on_disc):.3f}",
        "colors": f"{fmean(from_photo):.3f}",
        "grammar": f"{fmean(of_grammar):.3f}",
        "words": len(in_half),
        **evidence.stamp(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []], metavar="KIND", help=", ".join(KINDS))
    for kind in parser.parse_args().kinds or KINDS:
        net, processor = train(kind)
        row = measure(kind, net, processor)
        print(row, flush=True)
        evidence.update("entries", [row], ["entry"])


if __name__ == "__main__":
    main()
