"""Colored letters and their captions, and a small CLIP and a small SigLIP that are trained on them.

The networks are transformers' own, with few and narrow layers. Their tokenizer knows only the words of the captions.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .pictures import LETTERS, SIDE, Task, letter_masks

COLORS = {
    "red": (0.9, 0.15, 0.15),
    "green": (0.15, 0.75, 0.2),
    "blue": (0.2, 0.3, 0.95),
    "yellow": (0.95, 0.9, 0.2),
    "pink": (0.95, 0.5, 0.8),
    "white": (1.0, 1.0, 1.0),
}
WORDS = "ASTX"  # the letters
CAPTIONS = tuple(f"{color} {letter}" for color in COLORS for letter in WORDS)
MEAN, STD = 0.45, 0.25  # of the pictures
STEPS = 4000
RATE = 1e-3
BATCH = 32
_JITTER = 0.06
FAMILIES = ("CLIP", "SigLIP")
LAYERS = ("vision_model.embeddings", *(f"vision_model.encoder.layers.{i}" for i in range(3)))
_LONGEST = 8  # tokens
_WIDTH, _TEXT_WIDTH, _EMBEDDING = 96, 48, 32
_START, _END = "<|startoftext|>", "<|endoftext|>"


@dataclass(frozen=True)
class Captioned(Task):
    """Pictures whose classes are captions; two objects differ in both color and letter."""

    def labels(self, count: int, objects: int, generator: torch.Generator) -> Tensor:
        """Captions (B, K)."""
        letters, colors = len(WORDS), len(COLORS)
        first = torch.randint(len(CAPTIONS), (count,), generator=generator)
        found = [first]
        if objects == 2:
            color = (first // letters + torch.randint(1, colors, (count,), generator=generator)) % colors
            letter = (first % letters + torch.randint(1, letters, (count,), generator=generator)) % letters
            found.append(color * letters + letter)
        return torch.stack(found, 1)


@functools.cache
def _palette() -> Tensor:
    return torch.tensor([*COLORS.values()])


def _paint(labels: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    letters = torch.tensor([LETTERS.index(letter) for letter in WORDS])
    mask = letter_masks()[letters[labels % len(WORDS)]]
    color = _palette()[labels // len(WORDS)]
    color = (color + _JITTER * torch.randn(color.shape, generator=generator)).clamp(0, 1)
    return mask, mask * color[:, :, None, None]


TASK = Captioned("captions", len(CAPTIONS), _paint)


def build(family: str) -> Any:
    """An untrained network, one of ``FAMILIES``."""
    from transformers import CLIPConfig, CLIPModel, SiglipConfig, SiglipModel

    names = tokens()
    text = {
        "vocab_size": len(names),
        "hidden_size": _TEXT_WIDTH,
        "intermediate_size": 2 * _TEXT_WIDTH,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": _LONGEST,
        "bos_token_id": names[_START],
        "eos_token_id": names[_END],
        "pad_token_id": names[_END],
    }
    vision = {
        "hidden_size": _WIDTH,
        "intermediate_size": 2 * _WIDTH,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "image_size": SIDE,
        "patch_size": 8,
    }
    if family == "CLIP":
        return CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=_EMBEDDING))
    net = SiglipModel(SiglipConfig(text_config={**text, "projection_size": _WIDTH}, vision_config=vision))
    net.logit_scale.data.fill_(math.log(10))  # as SigLIP's training starts; transformers leaves it to chance
    return net


def tokens() -> dict[str, int]:
    """The words that the network knows, and their numbers."""
    words = ["[UNK]", _START, *COLORS, *WORDS.lower(), "a", "letter", _END]
    return {word: i for i, word in enumerate(dict.fromkeys(words))}


def tokenizer() -> Any:
    """A tokenizer of transformers for these words, which are read in upper or lower case."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    names = tokens()
    words = Tokenizer(models.WordLevel(names, unk_token="[UNK]"))
    words.normalizer = normalizers.Lowercase()
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [(token, names[token]) for token in (_START, _END)]
    words.post_processor = processors.TemplateProcessing(single=f"{_START} $A {_END}", special_tokens=ends)
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        unk_token="[UNK]",
        bos_token=_START,
        eos_token=_END,
        pad_token=_END,
        model_max_length=_LONGEST,
        model_input_names=["input_ids"],
    )


def save(net: Any, folder: Path) -> None:
    """Write a network with its tokenizer and image processor, as ``save_pretrained`` does."""
    from transformers import CLIPImageProcessor, SiglipImageProcessor

    size = {"height": SIDE, "width": SIDE}
    values = {"image_mean": [MEAN] * 3, "image_std": [STD] * 3}
    if net.config.model_type == "siglip":
        processor = SiglipImageProcessor(size=size, **values)
    else:
        processor = CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size=size, **values)
    for part in (net, tokenizer(), processor):
        part.save_pretrained(folder)


@functools.cache
def captions() -> Tensor:
    """The tokens (K, N) of all captions, padded, which makes no difference to CLIP."""
    found: Tensor = tokenizer()(list(CAPTIONS), padding="max_length", return_tensors="pt")["input_ids"]
    return found


def logits(net: nn.Module, images: Tensor) -> Tensor:
    """The network's own similarities (B, K) of images with all captions, scaled."""
    found: Tensor = net(input_ids=captions(), pixel_values=images).logits_per_image
    return found


def accuracy(net: nn.Module, count: int = 512, seed: int = 1) -> float:
    """How often the right one of all captions is the most similar to a picture with one letter."""
    generator = torch.Generator().manual_seed(seed)
    right = 0
    with torch.inference_mode():
        for _ in range(count // 128):
            pictures = TASK.pictures(128, 1, generator)
            right += int((logits(net.eval(), pictures.images).argmax(1) == pictures.labels[:, 0]).sum())
    return right / (count // 128 * 128)


def trained(family: str, cache: Path, steps: int = STEPS) -> tuple[Any, float]:
    """The trained network and its accuracy, from the folder if it has been trained before.

    The loss is CLIP's from image to text, over all captions in place of those of the batch, of which many are equal.
    """
    torch.manual_seed(0)
    net, path = build(family), cache / f"{TASK.name}-{family}.pt"
    if path.exists():
        kept = torch.load(path, weights_only=True)
        net.load_state_dict(kept["state"])
        return net.eval(), kept["accuracy"]
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(net.parameters(), RATE, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps, pct_start=0.15)
    for step in range(steps):
        net.train()
        pictures = TASK.pictures(BATCH, 1, generator)
        loss = F.cross_entropy(logits(net, pictures.images), pictures.labels[:, 0])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 250 == 249:
            print(
                f"{family}, step {step + 1}: loss {loss.item():.3f}, accuracy {accuracy(net, 256):.3f}",
                flush=True,
            )
    found = accuracy(net)
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"accuracy": found, "state": net.state_dict()}, path)
    return net.eval(), found
