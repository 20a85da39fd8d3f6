"""Which part of a picture makes a small LLaVA write each word, and how much of a word's evidence is in the picture."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ebcli
from benchmarks import evidence

from .captions import MEAN, STD
from .methods import JOINT, STEPWISE, Maps, attn_lrp, gradients, rule_for
from .pictures import CLUTTER, background, with_clutter
from .rollout import image_shares
from .scores import score
from .sentences import answers, blank, described, logits, prompt, words, written

DEFAULT = "deviation"
LAYERS: tuple[str | None, ...] = (
    None,
    "net.model.vision_tower.embeddings",
    *(f"net.model.vision_tower.encoder.layers.{i}" for i in range(3)),
    "net.model.multi_modal_projector",
    DEFAULT,
)
PATCHES = (8, 8)
_ROLES = {
    "left": ("first letter", "relation", "of", "second letter", ",", "color", ".", "end"),
    "above": ("first letter", "relation", "second letter", ",", "color", ".", "end"),
}
ROLES = _ROLES["left"]
_LOCATED = ("first letter", "second letter", "color")
_SEED = 5


class Less(nn.Module):
    """Tokens (B, N, C) less a constant (B, 1, C)."""

    def __init__(self, constant: Tensor) -> None:
        super().__init__()
        self.constant = constant

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens - self.constant


class Told(nn.Module):
    """A LLaVA that is told its answers, as a classifier of pictures: (B, 3, 64, 64) to the logits (B, N words).

    Its image tokens are what the layer ``deviation`` returns, plus a constant.

    Args:
        net: the network.
        told: (B, N), the tokens of the answers.
        constant: (B, 1, C), the part of the image tokens that is no evidence.
    """

    def __init__(self, net: Any, told: Tensor, constant: Tensor) -> None:
        super().__init__()
        self.net, self.told, self.constant = net, told, constant
        self.deviation = Less(constant)

    def forward(self, images: Tensor) -> Tensor:
        def split(_module: nn.Module, _inputs: object, tokens: Tensor) -> Tensor:
            parts = torch.cat(
                [self.deviation(tokens), self.constant], 1
            )  # the constant is an input of its own
            return parts[:, :-1] + parts[:, -1:]

        handle = self.net.model.multi_modal_projector.register_forward_hook(split)
        try:
            return logits(self.net, images, self.told).flatten(1)
        finally:
            handle.remove()

    def by_word(self, images: Tensor) -> Tensor:
        """The logits (B, N, words)."""
        with torch.no_grad():
            found: Tensor = self(images).unflatten(1, (self.told.shape[1], -1))
        return found


def mean_tokens(net: Any, images: Tensor) -> Tensor:
    """The mean (B, 1, C) of a picture's tokens, as the decoder gets them: what they say of any place."""
    with torch.no_grad():
        tokens = torch.stack(list(net.model.get_image_features(images, return_dict=True).pooler_output))
    return tokens.mean(1, keepdim=True)


def roles(sentence: str) -> tuple[str, ...]:
    """What each word of an answer is."""
    return _ROLES[sentence.split()[1]]


def units(told: Tensor, at: Tensor) -> Tensor:
    """Priors (B, K, N words) of the words of answers (B, N) at positions (B, K)."""
    count = len(words())
    return F.one_hot(at * count + told.gather(1, at), told.shape[1] * count).float()


def any_other(told: Tensor, at: Tensor) -> Tensor:
    """Priors (B, K, N words) of all other words at the same positions, alike."""
    unit = units(told, at).unflatten(2, (told.shape[1], -1))
    return ((unit.amax(3, keepdim=True) - unit) / (len(words()) - 1)).flatten(2)


def located(net: Any, accuracy: float, count: int) -> list[dict[str, Any]]:
    """A row for each kind of word, layer and method: whether the map is on the letter that the word is about."""
    pictures = described(count, torch.Generator().manual_seed(_SEED))
    images, told = pictures.images, answers(pictures.sentences)
    asked = Told(net, told, mean_tokens(net, images))
    at = torch.tensor([[roles(sentence).index(role) for role in _LOCATED] for sentence in pictures.sentences])
    right = (asked.by_word(images).argmax(2) == told).gather(1, at)
    stacked = pictures.stacked[:, None, None]
    boxes = torch.where(stacked, pictures.boxes[..., [2, 3, 0, 1]], pictures.boxes)
    rows = []
    for method, by_layer in _maps(asked, images, at).items():
        for layer, found in by_layer.items():
            side_by_side = torch.where(stacked[..., None], found.mT, found)
            for k, role in enumerate(_LOCATED):
                counted = torch.zeros_like(right[:, :2])
                counted[:, int(role == "second letter")] = right[:, k]
                scored = score(side_by_side[:, [k, k]], boxes, counted)
                rows.append(
                    {
                        "network": "LLaVA",
                        "accuracy": f"{accuracy:.3f}",
                        "word": role,
                        "questions": int(counted.sum()),
                        "layer": "input" if layer is None else layer.removeprefix("net.model."),
                        "default": layer == DEFAULT,
                        "method": method,
                        "rule": rule_for(method, JOINT),
                        "share": f"{scored.share:.3f}",
                        "hits": f"{scored.hits:.2f}",
                        **evidence.stamp(),
                    }
                )
    return rows


def _maps(asked: Told, images: Tensor, at: Tensor) -> dict[str, Maps]:
    """The maps (B, K, H, W) of words at positions (B, K), by method and layer."""
    told, count = asked.told, len(words())
    prior, others = units(told, at), any_other(told, at)

    def excitation(prior: Tensor, *, contrastive: bool = False, joint: bool = True) -> Maps:
        results = ebcli.excitation_backprop(asked, images, prior, list(LAYERS), contrastive, joint=joint)
        return {result.layer: result.maps for result in results}

    marginal, other = excitation(prior), excitation(others)
    grids = dict.fromkeys(LAYERS[1:], PATCHES)
    labels = at * count + told.gather(1, at)
    found = {
        "contrastive": excitation(prior, contrastive=True),
        STEPWISE: excitation(prior, contrastive=True, joint=False),
        "against the others": {layer: _even(marginal[layer]) - _even(other[layer]) for layer in LAYERS},
        "marginal": marginal,
        **gradients(asked, images, labels, grids),
        "AttnLRP": attn_lrp(asked, images, labels, grids),
    }
    tokens = torch.cat([prompt().expand(len(images), -1), told[:, :-1]], 1)
    shares = image_shares(asked.net, images, tokens)[:, len(prompt()) - 1 :]
    of_words = shares.gather(1, at[..., None].expand(-1, -1, shares.shape[2]))
    return found | {"attention rollout": {DEFAULT: of_words.unflatten(2, PATCHES)}}


def _even(maps: Tensor) -> Tensor:
    return maps / maps.sum((2, 3), keepdim=True)


def shared(net: Any, accuracy: float, count: int) -> list[dict[str, Any]]:
    """A row for each kind of picture and of word: how much of the word's evidence is in the picture.

    The probability without the picture is that of image tokens that are all their mean.
    """
    generator = torch.Generator().manual_seed(_SEED + 1)
    kinds = {
        "letters": described(count, generator).images,
        "clutter": cluttered(count, generator),
        "blank": blank(count, generator).images,
    }
    rows = []
    for kind, images in kinds.items():
        said = written(net, images)
        told = answers(said)
        prior = units(told, torch.arange(told.shape[1]).expand(len(told), -1))
        mean = mean_tokens(net, images)
        asked, whole = Told(net, told, mean), Told(net, told, torch.zeros_like(mean))
        found = {"probability": _probabilities(asked, images)}
        with torch.no_grad():
            handle = asked.deviation.register_forward_hook(
                lambda _module, _inputs, tokens: torch.zeros_like(tokens)
            )
            found["without the picture"] = _probabilities(asked, images)
            handle.remove()
        for rule in (JOINT, STEPWISE):
            for name, network in ((rule, asked), (f"{rule}, whole tokens", whole)):
                found[name] = ebcli.excitation_backprop(
                    network, images, prior, DEFAULT, joint=rule == JOINT
                ).mass
        for role in ROLES:
            at = [
                (i, roles(sentence).index(role)) for i, sentence in enumerate(said) if role in roles(sentence)
            ]
            means = {
                name: f"{torch.stack([by_word[i] for i in at]).mean():.3f}" for name, by_word in found.items()
            }
            row = {
                "network": "LLaVA",
                "accuracy": f"{accuracy:.3f}",
                "pictures": kind,
                "word": role,
                "words": len(at),
            }
            largest = {"joint, largest": f"{torch.stack([found[JOINT][i] for i in at]).max():.3f}"}
            rows.append(row | means | largest | evidence.stamp())
    return rows


def cluttered(count: int, generator: torch.Generator) -> Tensor:
    """Pictures (B, 3, 64, 64) of clutter without letters, of which none was trained on."""
    images = background(count, generator)
    for _ in range(CLUTTER):
        images = with_clutter(images, generator)
    return (images + 0.05 * torch.randn(images.shape, generator=generator) - MEAN) / STD


def _probabilities(asked: Told, images: Tensor) -> Tensor:
    """The probabilities (B, N) of the words of the answers."""
    return asked.by_word(images).softmax(2).gather(2, asked.told[..., None])[..., 0]
