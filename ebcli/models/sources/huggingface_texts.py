"""Detectors of what texts describe: Grounding DINO, which reads them as one prompt, and OWL-ViT, which reads each."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ebcli.models.boxes import Candidates
from ebcli.models.sources.two_towers import too_long


def with_texts(net: Any, tokenizer: Any, texts: Sequence[str], name: str) -> nn.Module:
    """Make a detector take images (B, 3, H, W) only, and return candidates whose classes are texts.

    Args:
        net: a detector of transformers, whose modules keep their names.
        tokenizer: its tokenizer.
        texts: the classes.
        name: the network's name, for messages.

    Raises:
        ConfigurationError: the texts are too long.
    """
    ids, places = (_each if hasattr(net, "owlvit") else _prompt)(net.config, tokenizer, texts, name)

    def read(_net: nn.Module, args: tuple[Tensor], _kwargs: Any) -> tuple[tuple[()], dict[str, Tensor]]:
        (images,) = args
        given = {key: one.to(images.device).repeat(len(images), 1) for key, one in ids.items()}
        return (), {"pixel_values": images, **given}

    def found(_net: nn.Module, _args: Any, kwargs: dict[str, Tensor], output: Any) -> Candidates:
        logits = torch.stack([output.logits[..., place].amax(-1) for place in places], -1)
        size = kwargs["pixel_values"].shape[-2:]
        return Candidates.of_queries(logits, output.pred_boxes, size, has_no_object=False)

    net.register_forward_pre_hook(read, with_kwargs=True)
    net.register_forward_hook(found, with_kwargs=True)
    return net


def _each(config: Any, tokenizer: Any, texts: Sequence[str], name: str) -> tuple[dict[str, Tensor], list[slice]]:
    """The tokens of each text, and where its logit is."""
    longest = config.text_config.max_position_embeddings
    for text in texts:
        if (count := len(tokenizer(text)["input_ids"])) > longest:
            raise too_long(text, f"has {count} tokens, but {name} reads at most {longest}")
    tokens = tokenizer(list(texts), padding="max_length", max_length=longest, return_tensors="pt")
    ids = {key: tokens[key] for key in ("input_ids", "attention_mask")}
    return ids, [slice(k, k + 1) for k in range(len(texts))]


def _prompt(config: Any, tokenizer: Any, texts: Sequence[str], name: str) -> tuple[dict[str, Tensor], list[slice]]:
    """The tokens of a prompt, texts separated by full stops as in training, and where each text's logits are."""
    (stop,) = tokenizer(".", add_special_tokens=False)["input_ids"]
    ids, places = [tokenizer.cls_token_id], []
    for text in texts:
        own = tokenizer(text.lower().strip(" ."), add_special_tokens=False)["input_ids"]
        places.append(slice(len(ids), len(ids) + len(own)))
        ids += [*own, stop]
        if len(ids) >= config.max_text_len:
            raise too_long(text, f"makes more than {config.max_text_len} tokens, which is all that {name} reads")
    return {"input_ids": torch.tensor([[*ids, tokenizer.sep_token_id]])}, places
