"""Loading networks by name; torchvision's own loading is the reference."""

import hashlib
import http.client
import io
import re
import sys
import urllib.error
import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torchvision
from torch import nn
from torchvision.models import Weights, WeightsEnum
from torchvision.transforms._presets import ImageClassification

from ebcli.errors import ConfigurationError
from ebcli.models import load_model
from ebcli.models.running import resolve_device
from ebcli.models.sources.torchvision import Torchvision, published_state


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Path:
    """The empty cache directory of torch.hub."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    return folder


def published_file(name: str, weights: str = "DEFAULT") -> str:
    return torchvision.models.get_model_weights(name)[weights].url.rsplit("/", 1)[1]


def calibrated(net: nn.Module, size: int) -> nn.Module:
    """Set batch norm statistics, so that an untrained network's output depends on its input."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        net.train()(torch.randn(2, 3, size, size))
    return net.eval()


def as_published(name: str, net: nn.Module) -> dict[str, torch.Tensor]:
    """A state dict as in torchvision's file: DenseNet's is old, with other names and without batch counters."""
    state = net.state_dict()
    if not name.startswith("densenet"):
        return state
    return {
        re.sub(r"(denselayer\d+\.)(norm|conv)(\d)", r"\1\2.\3", key): value
        for key, value in state.items()
        if "num_batches" not in key
    }


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("name", "size", "options"),
    [
        pytest.param("googlenet", 64, {"aux_logits": True, "init_weights": False}, marks=pytest.mark.release),
        pytest.param(
            "inception_v3", 96, {"aux_logits": True, "init_weights": False}, marks=pytest.mark.release
        ),
        ("densenet121", 32, {}),
        pytest.param("mnasnet0_5", 32, {}, marks=pytest.mark.release),
        ("squeezenet1_1", 64, {}),
        ("mobilenet_v3_small", 32, {}),
    ],
)
def test_published_weights_give_the_same_network_as_torchvision(hub, name, size, options):
    torch.manual_seed(0)
    net = torchvision.models.get_model(name, **options)
    if name != "inception_v3":  # its auxiliary classifier takes no small images
        calibrated(net, size)
    state = as_published(name, net)
    torch.save(state, hub / published_file(name))
    expected = torchvision.models.get_model(name, weights="DEFAULT").eval()

    loaded = load_model(name)
    by_file = load_model(name, weights=hub / published_file(name))

    images = torch.randn(1, 3, size, size)
    with torch.inference_mode():
        logits = expected(images)
        assert logits.std() > 0
        torch.testing.assert_close(loaded.net(images), logits, rtol=0, atol=0)
        torch.testing.assert_close(by_file.net(images), logits, rtol=0, atol=0)
    assert loaded.weights == "IMAGENET1K_V1"
    assert loaded.categories == tuple(torchvision.models.get_model_weights(name).DEFAULT.meta["categories"])
    assert not any(module.training for module in loaded.net.modules())


@pytest.mark.release
def test_weights_have_their_own_preprocessing_also_as_a_file(hub, tmp_path):
    state = torchvision.models.mobilenet_v3_large().state_dict()
    for weights, resize in {"IMAGENET1K_V1": 256, "IMAGENET1K_V2": 232}.items():
        file = hub / published_file("mobilenet_v3_large", weights)
        torch.save(state, file)
        assert load_model("mobilenet_v3_large", weights).transforms.resize == (resize,)
        assert load_model("mobilenet_v3_large", file).transforms.resize == (resize,)
        qualified = f"MobileNet_V3_Large_Weights.{weights}"
        assert load_model("mobilenet_v3_large", qualified).weights == weights
    assert load_model("mobilenet_v3_large").weights == "IMAGENET1K_V2"
    torch.save(state, tmp_path / "mine.pth")
    assert load_model("mobilenet_v3_large", tmp_path / "mine.pth").transforms.resize == (232,)
    assert load_model("mobilenet_v3_large", tmp_path / "mine.pth").categories is not None


@pytest.mark.parametrize(
    "error",
    [
        urllib.error.URLError(OSError("Name or service not known")),
        urllib.error.HTTPError("https://x", 403, "Forbidden", http.client.HTTPMessage(), io.BytesIO()),
        TimeoutError("timed out"),
        http.client.IncompleteRead(b"123"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_failed_download_is_reported_with_alternatives(hub, monkeypatch, capsys, error):
    def urlopen(*args, **kwargs):
        raise error

    monkeypatch.setattr(torch.hub, "urlopen", urlopen)
    with pytest.raises(ConfigurationError) as caught:
        load_model("squeezenet1_1")
    message = str(caught.value)
    url = torchvision.models.SqueezeNet1_1_Weights.DEFAULT.url
    for part in (
        "IMAGENET1K_V1",
        "squeezenet1_1",
        url,
        str(hub),
        "--weights FILE",
        "--weights none",
        "--model",
    ):
        assert part in message
    assert not set("\n<>") & set(message)
    assert capsys.readouterr().out == ""


def test_a_download_with_a_wrong_hash_leaves_nothing_behind(hub, monkeypatch, capsys):
    body = io.BytesIO(b"something else")
    body.info = lambda: SimpleNamespace(get_all=lambda key: None)  # type: ignore[attr-defined]
    monkeypatch.setattr(torch.hub, "urlopen", lambda *args, **kwargs: body)
    with pytest.raises(ConfigurationError, match=r"cannot download.*hash"):
        load_model("squeezenet1_1")
    assert list(hub.iterdir()) == []
    assert capsys.readouterr().out == ""


def test_a_damaged_cached_file_is_named(hub):
    file = hub / published_file("squeezenet1_1")
    file.write_bytes(b"half a download")
    with pytest.raises(ConfigurationError, match=r"damaged.*delete") as caught:
        load_model("squeezenet1_1")
    assert str(file) in str(caught.value)


def test_an_old_format_is_read_only_if_the_hash_matches(hub):
    content = io.BytesIO()
    torch.save({"weight": torch.ones(2), "unsafe": Path("x")}, content)  # weights_only=True refuses a Path
    digits = hashlib.sha256(content.getvalue()).hexdigest()[:8]
    preset = partial(Weights, transforms=partial(ImageClassification, crop_size=224), meta={})

    class Old(WeightsEnum):
        WHOLE = preset(url=f"https://x.invalid/old-{digits}.pth")
        CHANGED = preset(url="https://x.invalid/old-00000000.pth")
        UNHASHED = preset(url="https://x.invalid/old.pth")

    for member in Old:
        (hub / member.url.rsplit("/", 1)[1]).write_bytes(content.getvalue())
    torch.testing.assert_close(published_state("old", Old.WHOLE)["weight"], torch.ones(2))
    for member in (Old.CHANGED, Old.UNHASHED):
        with pytest.raises(ConfigurationError, match="damaged"):
            published_state("old", member)


def test_weights_without_class_names_have_none(hub, monkeypatch):
    published = torchvision.models.SqueezeNet1_1_Weights.DEFAULT.value

    class Features(WeightsEnum):  # such as VGG16_Weights.IMAGENET1K_FEATURES
        DEFAULT = Weights(published.url, published.transforms, {"categories": None})

    torch.save(torchvision.models.squeezenet1_1().state_dict(), hub / published_file("squeezenet1_1"))
    monkeypatch.setattr(torchvision.models, "get_model_weights", lambda name: Features)
    assert load_model("squeezenet1_1").categories is None


def test_untrained_networks_are_reproducible_and_keep_the_random_state():
    torch.manual_seed(5)
    expected = torch.randn(3)
    torch.manual_seed(5)
    first = load_model("squeezenet1_1", weights="none")
    torch.testing.assert_close(torch.randn(3), expected, rtol=0, atol=0)
    second = load_model("squeezenet1_1", weights="none")
    for one, other in zip(first.net.parameters(), second.net.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    assert first.weights == "none"
    assert first.categories is not None
    assert len(first.categories) == 1000
    assert first.transforms.size == (224, 224)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["googlenet", "inception_v3"])
def test_networks_with_auxiliary_classifiers_return_logits_without_a_warning(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = load_model(name, weights="none")
    with torch.inference_mode():
        assert loaded.net(torch.zeros(1, 3, 96, 96)).shape == (1, 1000)


def test_an_untrained_vision_transformer_has_the_size_of_its_preset():
    with torch.device("meta"):  # shapes only: it has 632 million parameters
        loaded = load_model("vit_h_14", weights="none", device="meta")
        assert loaded.transforms.size == (518, 518)
        assert loaded.net(torch.zeros(1, 3, 518, 518)).shape == (1, 1000)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("vgg61", "'vgg16'"),
        ("reznet50", "'resnet50'"),
        ("zzz", "vgg16"),
        ("efficientnet", "'efficientnet_b0', 'efficientnet_lite0' or"),
    ],
)
def test_a_wrong_model_name_suggests_the_closest(wrong, right):
    with pytest.raises(ConfigurationError, match=right):
        load_model(wrong)


@pytest.mark.parametrize(
    ("package", "name", "command"),
    [
        ("timm", "timm/resnet18", "'eb-saliency[timm]'"),
        ("transformers", "hf/vit", "'eb-saliency[hf]'"),
        ("open_clip", "open_clip/RN50", "open_clip_torch"),
    ],
)
def test_a_missing_package_is_named(monkeypatch, package, name, command):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigurationError, match=re.escape(f"pip install {command}")):
        load_model(name, "none", class_names=["cat"] if package == "open_clip" else None)


@pytest.mark.parametrize("name", ["raft_small", "quantized_resnet18"])
def test_networks_without_classes_and_quantized_ones_are_refused(name):
    with pytest.raises(ConfigurationError, match="unknown model"):
        load_model(name, weights="none")


def test_the_case_of_a_model_name_does_not_matter():
    assert load_model("SqueezeNet1_1", weights="none").name == "squeezenet1_1"


@pytest.mark.parametrize("weights", ["IMAGENET1K_V7", "no/such/file.pth", ""])
def test_wrong_weights_list_the_valid_ones(weights):
    with pytest.raises(ConfigurationError, match="IMAGENET1K_V1, IMAGENET1K_V2, DEFAULT, none"):
        load_model("resnet50", weights=weights)


@pytest.mark.parametrize("name", ["net.keras", "./net.H5", "folder/net.weights.hdf5"])
def test_a_file_of_keras_can_be_converted(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    advice = re.escape(
        f"{name} is a file of Keras, but networks of PyTorch are explained: convert the network to ONNX"
    )
    for create in (False, True):  # whether or not it is there
        if create:
            Path(name).parent.mkdir(exist_ok=True)
            Path(name).write_bytes(b"\x89HDF")
        with pytest.raises(ConfigurationError, match=advice):
            load_model(name)
        with pytest.raises(ConfigurationError, match=advice):
            load_model("resnet18", weights=name)


@pytest.mark.parametrize("weights", ["net.onnx", "net.PT2"])
def test_a_network_is_no_weights(weights):
    with pytest.raises(
        ConfigurationError, match=f"'{weights}' is a network, not weights of resnet50: give it to --m"
    ):
        load_model("resnet50", weights=weights)


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ("nonsense", "unknown device 'nonsense': use cpu, cuda, cuda:1 or mps"),
        ("cpu:x", "unknown device 'cpu:x'"),
        ("cuda:99", "device 'cuda:99' is not available: [^.;]*; use --device cpu$"),
    ],
)
def test_an_unavailable_device_is_refused_early(monkeypatch, device, said):
    monkeypatch.setattr(Torchvision, "build", lambda *args: pytest.fail("built the network"))
    with pytest.raises(ConfigurationError, match=said) as caught:
        load_model("squeezenet1_1", weights="none", device=device)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "gpus", "rank", "device"),
    [
        ("auto", 4, "2", "cuda:2"),
        ("auto", 4, "6", "cuda:2"),  # more processes than GPUs share them
        ("auto", 4, None, "cuda"),
        ("auto", 4, "x", "cuda"),
        ("auto", 0, "2", "cpu"),
        ("cpu", 4, "2", "cpu"),
        ("cuda:1", 4, "2", "cuda:1"),
    ],
)
def test_each_rank_gets_its_own_gpu(monkeypatch, name, gpus, rank, device):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("LOCAL_RANK", rank)
    assert resolve_device(name) == device


def test_the_network_is_on_the_device():
    loaded = load_model("squeezenet1_1", weights="none", device=torch.device("meta"))
    assert {parameter.device.type for parameter in loaded.net.parameters()} == {"meta"}
