"""Maps of videos: scores averaged over clips choose the classes, and each clip is explained for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ebcli.drawing.explanation import LayerMaps
from ebcli.eb.capture import single_tensor
from ebcli.errors import ConfigurationError
from ebcli.models import LoadedModel
from ebcli.run.choice import Choice

# A batch of inputs and the targets -> for each layer, the maps of each clip
Explain = Callable[[Tensor, Tensor], list[list[LayerMaps]]]


@torch.no_grad()
def average_scores(loaded: LoadedModel, batches: Iterator[Tensor]) -> Tensor:
    """The scores (1, num_classes) of a video, averaged over its clips as torchvision's evaluation does."""
    scores = [loaded.to_scores(single_tensor(loaded.net(clips), "the output")).float() for clips in batches]
    return torch.cat(scores).mean(0, keepdim=True)


def explain_clips(
    batches: Callable[[], Iterator[Tensor]], choice: Choice, explain: Explain
) -> tuple[list[list[LayerMaps]], ...]:
    """The maps of a video, for each turn of `choice`: for each layer, a list of one.

    Args:
        batches: the clips, (B, 3, T, H, W), from the start.
        choice: the classes, of a single video.
        explain: explains a batch.
    """
    turns = []
    for first in choice.starts:
        targets = choice.targets(first)
        parts = [explain(clips, targets.expand(len(clips), -1)) for clips in batches()]
        of_layers = zip(*parts, strict=True)
        turns.append([[in_sequence([one for part in of_layer for one in part])] for of_layer in of_layers])
    return tuple(turns)


def in_sequence(clips: Sequence[LayerMaps]) -> LayerMaps:
    """The map of a video at a layer: its clips one after another, each with an equal share of the probability."""
    first, count = clips[0], len(clips)
    if first.maps.ndim != 4:
        raise ConfigurationError(f"the map of layer {first.layer!r} has no time: choose a layer that keeps all frames")
    losses = None
    if first.lost_mass is not None:
        sites = dict.fromkeys(site for clip in clips for site in clip.lost_mass or {})
        losses = {
            site: [sum(values) / count for values in zip(*(_lost(clip, site) for clip in clips), strict=True)]
            for site in sites
        }
    return replace(
        first,
        mass=[sum(values) / count for values in zip(*(clip.mass for clip in clips), strict=True)],
        maps=np.concatenate([clip.maps for clip in clips], 1) / np.float32(count),
        lost_mass=losses,
    )


def _lost(clip: LayerMaps, site: str) -> list[float]:
    return (clip.lost_mass or {}).get(site, [0.0] * len(clip.mass))
