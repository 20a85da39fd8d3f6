"""Attention rollout, written from its paper, for a LLaVA: the encoder's and the decoder's.

S. Abnar and W. Zuidema, "Quantifying Attention Flow in Transformers", ACL 2020, arXiv:2005.00928. A layer's attention,
averaged over its heads, is mixed with the identity for the residual branch, half and half, and the layers are
multiplied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def rollout(attentions: Sequence[Tensor]) -> Tensor:
    """From layers of attention weights (B, heads, T, T), the first one first, to shares (B, T, T) of the inputs."""
    eye = torch.eye(attentions[0].shape[-1])
    shares = eye.expand(len(attentions[0]), -1, -1)
    for weights in attentions:
        shares = (0.5 * weights.mean(1) + 0.5 * eye) @ shares
    return shares


def image_shares(net: Any, images: Tensor, tokens: Tensor) -> Tensor:
    """The share (B, T, N) of each of an image's N patches at each token of (B, T).

    Args:
        net: the network; its attention is computed eagerly, and not restored.
        images: (B, 3, H, W).
        tokens: (B, T), with one token for each patch.
    """
    net.set_attn_implementation("eager")
    with torch.no_grad():
        decoded = rollout(net(input_ids=tokens, pixel_values=images, output_attentions=True).attentions)
        encoded = rollout(net.model.vision_tower(images, output_attentions=True).attentions)
    at = (tokens[0] == net.config.image_token_id).nonzero()[:, 0]
    return decoded[:, :, at] @ encoded
