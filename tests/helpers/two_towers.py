"""Small models with a tower for images and one for texts, in directories as ``save_pretrained`` writes them."""

from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.trained import captions

SIDE = 64
SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
VISION = {**SMALL, "image_size": SIDE, "patch_size": 16}


def clip(folder: Path) -> Any:
    """A CLIP with random weights, which knows the words of ``captions.tokens()``."""
    torch.manual_seed(3)
    names = captions.tokens()
    text = {
        **SMALL,
        "vocab_size": len(names),
        "max_position_embeddings": 8,
        "eos_token_id": names["<|endoftext|>"],
    }
    config = transformers.CLIPConfig(text_config=text, vision_config=VISION, projection_dim=24)
    net = transformers.CLIPModel(config).eval()
    captions.save(net, folder)
    return net


def siglip(folder: Path) -> Any:
    """A SigLIP with random weights and the same words; it squashes images."""
    torch.manual_seed(4)
    text = {
        **SMALL,
        "vocab_size": len(captions.tokens()),
        "max_position_embeddings": 8,
        "projection_size": 32,
    }
    net = transformers.SiglipModel(transformers.SiglipConfig(text_config=text, vision_config=VISION)).eval()
    net.save_pretrained(folder)
    captions.tokenizer().save_pretrained(folder)
    transformers.SiglipImageProcessor(size={"height": SIDE, "width": SIDE}).save_pretrained(folder)
    return net
