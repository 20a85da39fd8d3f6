"""Deletion and insertion for networks whose curves are known."""

import numpy as np
import pytest
import torch
from torch import Tensor

from ebcli.evaluate import area_under, perturbation_curve

GENERATOR = np.random.default_rng(0)


def brightness(images: Tensor) -> Tensor:
    return images.mean((1, 2, 3))


def scene() -> tuple[Tensor, Tensor, np.ndarray]:
    """An image whose left quarter is bright, a black image, and a mask of the bright part."""
    mask = np.zeros((8, 16))
    mask[:, :4] = 1
    image = torch.from_numpy(mask).float().expand(3, -1, -1).clone()
    return image, torch.zeros_like(image), mask


def test_a_perfect_map_removes_the_object_first() -> None:
    image, dark, mask = scene()
    curve = perturbation_curve(brightness, image, dark, mask, steps=4)
    assert curve == pytest.approx([0.25, 0, 0, 0, 0])
    assert area_under(curve) == pytest.approx(0.25 / 8)
    assert perturbation_curve(brightness, dark, image, mask, steps=4) == pytest.approx(
        [0, 0.25, 0.25, 0.25, 0.25]
    )


def test_an_inverted_map_removes_the_object_last() -> None:
    image, dark, mask = scene()
    curve = perturbation_curve(brightness, image, dark, 1 - mask, steps=4)
    assert curve == pytest.approx([0.25, 0.25, 0.25, 0.25, 0])


@pytest.mark.parametrize("saliency", [np.ones((8, 16)), np.full((8, 16), np.nan)])
def test_blank_maps_give_chance(saliency: np.ndarray) -> None:
    """In random order, every pixel is equally likely to be removed: the mean curve is a straight line."""
    image, dark, _ = scene()
    curves = [perturbation_curve(brightness, image, dark, saliency, 4, GENERATOR) for _ in range(200)]
    assert np.mean(curves, 0) == pytest.approx(np.linspace(0.25, 0, 5), abs=0.01)
    assert np.std(curves, 0)[1:-1].min() > 0  # the order differs


def test_pixels_are_replaced_in_the_order_of_the_map() -> None:
    """Each pixel has its own weight, so the score tells which ones are left."""
    weights = torch.arange(32.0).reshape(4, 8)
    saliency = GENERATOR.permutation(32).reshape(4, 8)
    curve = perturbation_curve(
        lambda images: (images[:, 0] * weights).sum((1, 2)), *ends(), saliency, steps=32
    )
    lost = np.array(
        [float(weights.flatten()[np.flatnonzero(saliency.ravel() == 31 - i)[0]]) for i in range(32)]
    )
    assert curve == pytest.approx(np.r_[496, 496 - lost.cumsum()])


def ends() -> tuple[Tensor, Tensor]:
    return torch.ones(3, 4, 8), torch.zeros(3, 4, 8)
