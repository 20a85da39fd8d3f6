"""What strength is compared with: maps of pictures of noise, measured once for each network and layer."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import ebcli
from ebcli.run.controls import noise

ALL_NOISE = ("test_half_of_the_maps_of_noise_are_weaker",)

PICTURES = 24


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "eb-saliency/noise"


def network(seed: int = 0) -> nn.Sequential:
    """Of two classes, so that both are explained in each picture of noise, in whatever order."""
    torch.manual_seed(seed)
    pooled = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)
    return nn.Sequential(nn.Conv2d(3, 8, 5, 2), nn.ReLU(), nn.Conv2d(8, 8, 5, 2), nn.ReLU(), *pooled).eval()


def references(net: nn.Module, *layers: str) -> list[float | None]:
    found = ebcli.explain(net, torch.rand(3, 64, 64), 0, layer=layers)
    return [map_.noise for map_ in found.explanation.maps]


def test_half_of_the_maps_of_noise_are_weaker(cache: Path) -> None:
    net, layers = network(), ("1", "3")
    pictures = torch.cat([noise((3, 64, 64), seed) for seed in range(PICTURES)])
    expected = []
    for layer in layers:
        both = torch.tensor([[0, 1]] * PICTURES)
        maps = ebcli.excitation_backprop(net, pictures, both, layer, contrastive=True).maps
        strengths = np.sort([float(map_[map_ > 0].sum()) for map_ in maps.flatten(0, 1)])
        expected.append(float(f"{strengths[23:25].mean():.2g}"))  # of 48
    assert len(set(expected)) == 2
    assert references(net, *layers) == expected


def test_it_is_measured_once_for_each_network_and_layer(cache: Path) -> None:
    first = references(network(), "3")
    (kept,) = cache.iterdir()
    kept.write_text("0.25", encoding="utf-8")
    assert references(network(), "3") == [0.25]
    assert references(network(), "1") != [0.25]
    assert references(network(1), "3") != [0.25]
    kept.write_text("nothing", encoding="utf-8")
    assert references(network(), "3") == first


def test_no_cache_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = references(network(), "3")
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert references(network(), "3") == expected


@pytest.mark.parametrize("shape", [(3, 128, 128), (1, 64, 96), (2, 32, 32, 32)])
def test_noise_has_the_spectrum_of_photos(shape: tuple[int, ...]) -> None:
    """Amplitudes that fall with the frequency: each octave along an axis halves them."""
    pictures = np.concatenate([noise(shape, seed).numpy() for seed in range(40)])
    assert pictures.std() == pytest.approx(1, abs=0.01)
    assert abs(pictures.mean((-1, -2))).max() < 1
    spectra = abs(np.fft.fft(pictures.mean(tuple(range(2, pictures.ndim - 1))), axis=-1)).mean((0, 1))
    frequencies = np.arange(4, shape[-1] // 4)
    slope = np.polyfit(np.log(frequencies), np.log(spectra[frequencies]), 1)[0]
    assert slope == pytest.approx(-1, abs=0.12)
    assert not np.array_equal(*pictures[:2])
