"""The network's part of a run: errors come before any work, and what was lost is told for each image."""

from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from plans import make_plan
from runs import seen, tiny_model
from torch import nn

from ebcli import ImageError, LayerError, UnsupportedOpError
from ebcli.run import explainer as network_module
from ebcli.run.explainer import Explainer
from ebcli.run.plan import RunPlan

IMAGES = [seen(np.random.default_rng(i).integers(0, 256, (24, 24, 3), dtype=np.uint8)) for i in range(2)]


class Cosines(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.fft2(x).real


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Any:
    model = tiny_model()
    monkeypatch.setattr(network_module, "load_model", lambda *_, **__: model)
    return model


def plan(**options: Any) -> RunPlan:
    return make_plan("a.jpg", **{"layer": ("2",), "batch_size": 2, **options})


def test_operations_without_a_rule_are_refused_or_allowed(loaded: Any) -> None:
    loaded.net.insert(3, Cosines())
    with pytest.raises(UnsupportedOpError, match="fft_c2c in 3"):
        Explainer(plan())
    with pytest.warns(UserWarning, match="used ordinary gradients instead of excitation for .*fft_c2c in 3"):
        network = Explainer(plan(allow_unsupported=True))
    with pytest.warns(UserWarning, match="fft_c2c"):
        assert np.isfinite(network.explain(IMAGES)[1].maps[0].values).all()


def test_losses_and_mass_make_one_for_each_class_of_each_image(loaded: Any) -> None:
    for module in loaded.net.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)) and module.bias is not None:
            nn.init.constant_(module.bias, 0.5)
    assert Explainer(plan()).explain(IMAGES)[0].maps[0].lost_mass is None
    network = Explainer(plan(track_lost_mass=True, target=("0", "2")))
    for explained in network.explain(IMAGES):
        assert [map_.subject.index for map_ in explained.maps] == [0, 2]
        for map_ in explained.maps:
            assert map_.lost_mass is not None
            assert map_.mass + sum(map_.lost_mass.values()) == pytest.approx(1, abs=1e-5)


def test_a_layer_without_a_map_gets_one_that_has(loaded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebcli.models.default_layer", lambda _: "2")
    flat = next(name for name, module in loaded.net.named_modules() if isinstance(module, nn.Flatten))
    with pytest.raises(LayerError, match=rf"layer '{flat}' has no spatial dimensions.*, such as '2'"):
        Explainer(make_plan("a.jpg", layer=(flat,)))


def test_a_network_without_parameters_gets_the_type_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = nn.Sequential(nn.AvgPool2d(2), nn.ReLU(), nn.Identity(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model = replace(tiny_model(), net=net, num_classes=3, categories=("r", "g", "b"))
    monkeypatch.setattr(network_module, "load_model", lambda *_, **__: model)
    explainer, types = Explainer(plan(dtype="bfloat16", contrastive=False)), set[torch.dtype]()
    net[0].register_forward_pre_hook(lambda _module, inputs: types.add(inputs[0].dtype))
    explainer.explain(IMAGES)
    assert types == {torch.bfloat16}


def test_bfloat16_is_the_same_but_coarser(loaded: Any) -> None:
    exact = Explainer(plan(target=("3",), track_lost_mass=True)).explain(IMAGES)
    network = Explainer(plan(target=("3",), dtype="bfloat16", track_lost_mass=True))
    assert {parameter.dtype for parameter in network.loaded.net.parameters()} == {torch.bfloat16}
    for coarse, fine in zip(network.explain(IMAGES), exact, strict=True):
        (one,), (other,) = coarse.maps, fine.maps
        assert one.values.dtype == np.float32
        assert 0 < np.abs(one.values - other.values).max() < 0.03 * np.abs(other.values).max()
        assert one.mass == pytest.approx(other.mass, rel=0.02)
        assert one.subject.score == pytest.approx(other.subject.score, rel=0.02)


class Overflow(nn.Module):
    """Infinite for images whose first pixel is white."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.masked_fill((x[:, :1, :1, :1] > 2), torch.inf)


def test_an_image_whose_logits_are_not_finite_fails_alone(loaded: Any) -> None:
    loaded.net.insert(0, Overflow())
    side = loaded.transforms.shape[0]
    images = [np.zeros((side, side, 3), np.uint8) for _ in range(3)]
    images[1][0, 0] = 255
    first, second, third = Explainer(plan(layer=("3",))).explain([*map(seen, images)])
    assert isinstance(second, ImageError)
    assert "NaN or infinite" in str(second)
    assert first.maps[0].subject.score == third.maps[0].subject.score


def test_the_seconds_of_the_images_of_a_batch_add_up_to_the_batch(loaded: Any) -> None:
    network = Explainer(plan(batch_size=4))
    with mock.patch.object(network_module, "perf_counter", side_effect=[100.0, 102.0]):
        found = network.explain(IMAGES * 2)
    assert [one.seconds for one in found] == [0.5] * 4


def test_a_network_that_is_asked_about_others_knows_what_one_made_for_them_does(loaded: Any) -> None:
    """Of the classes, those to contrast with, and how strong maps of noise are."""
    usual = Explainer(plan())
    for options in ({"target": ("1",), "against": ("4",)}, {"against": ("0", "2")}, {"target": ("3",)}, {}):
        made, asked = Explainer(plan(**options)), usual.with_options(plan(**options).maps)
        assert asked.network.noise == pytest.approx(made.network.noise)
        assert (asked.network.classes, asked.network.against) == (made.network.classes, made.network.against)
        for one, other in zip(asked.explain(IMAGES), made.explain(IMAGES), strict=True):
            assert [map_.evidence for map_ in one.maps] == [map_.evidence for map_ in other.maps]  # type: ignore[union-attr]
            np.testing.assert_array_equal(one.maps[0].values, other.maps[0].values)  # type: ignore[union-attr]
    assert usual.with_options(plan(against=("4",)).maps).network.noise != usual.network.noise
