"""Reading checkpoint files and loading them into networks."""

import argparse
import os
import pickle
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torchvision.models import mnasnet0_5, shufflenet_v2_x0_5

from ebcli.errors import ConfigurationError
from ebcli.models import load_model
from ebcli.models.checkpoint import classes_in, load_checkpoint, read_checkpoint, without_prefixes

pytestmark = pytest.mark.usefixtures("watched")


@pytest.fixture(scope="module")
def finetuned() -> nn.Module:
    return shufflenet_v2_x0_5(num_classes=7).eval()


def prefixed(net: nn.Module, prefix: str) -> dict[str, torch.Tensor]:
    return {prefix + key: value for key, value in net.state_dict().items()}


WRAPPINGS = {
    "plain dict": lambda net: dict(net.state_dict()),
    "DataParallel": lambda net: nn.DataParallel(net).state_dict(),
    "torchvision reference script": lambda net: {
        "model": prefixed(net, "module."),
        "optimizer": {"state": {}, "param_groups": []},
        "epoch": 3,
        "args": argparse.Namespace(lr=0.1, name="x"),
    },
    "ImageNet example": lambda net: {
        "epoch": 9,
        "arch": "shufflenet_v2_x0_5",
        "state_dict": prefixed(net, "module."),
    },
    "Lightning and compile": lambda net: {"state_dict": prefixed(net, "model._orig_mod.")},
    "without batch counters": lambda net: {
        key: value for key, value in net.state_dict().items() if "num_batches" not in key
    },
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_a_wrapped_checkpoint_gives_the_same_network(tmp_path, finetuned, wrapping):
    path = tmp_path / "finetuned.pth"
    torch.save(WRAPPINGS[wrapping](finetuned), path)
    loaded = load_model("shufflenet_v2_x0_5", weights=path)
    images = torch.randn(1, 3, 64, 64)
    with torch.inference_mode():
        torch.testing.assert_close(loaded.net(images), finetuned(images), rtol=0, atol=0)
    assert loaded.categories is None  # there are no names for its seven classes
    assert loaded.weights == str(path)


def test_safetensors_give_the_same_network(tmp_path, finetuned):
    from safetensors.torch import save_file

    path = tmp_path / "finetuned.safetensors"
    save_file(finetuned.state_dict(), path)
    loaded = load_model("shufflenet_v2_x0_5", weights=path)
    images = torch.randn(1, 3, 64, 64)
    with torch.inference_mode():
        torch.testing.assert_close(loaded.net(images), finetuned(images), rtol=0, atol=0)
    path.write_bytes(b"no safetensors")
    with pytest.raises(ConfigurationError, match="cannot read"):
        read_checkpoint(path)


def test_a_missing_safetensors_package_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'eb-saliency\[safetensors\]'"):
        read_checkpoint(tmp_path / "net.safetensors")


class Malicious:
    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self):
        return os.mkdir, (str(self.witness),)


def test_a_malicious_checkpoint_runs_no_code(tmp_path):
    witness, path = tmp_path / "witness", tmp_path / "malicious.pth"
    torch.save({"state_dict": {"weight": torch.ones(1)}, "extra": Malicious(witness)}, path)
    with pytest.raises(ConfigurationError, match="cannot read"):
        read_checkpoint(path)
    assert not witness.exists()
    torch.load(path, weights_only=False)  # the attack itself works
    assert witness.exists()


@pytest.mark.parametrize("protocol", range(6))
def test_code_in_a_checkpoint_is_named_as_such(tmp_path: Path, protocol: int) -> None:
    content = {"weight": [1.0], "extra": Malicious(tmp_path / "witness")}
    path = tmp_path / "malicious.pth"
    for is_zip in (False, True):
        path.write_bytes(pickle.dumps(content, protocol))
        if protocol > 1:  # torch.save needs binary ones
            torch.save(content, path, pickle_protocol=protocol, _use_new_zipfile_serialization=is_zip)
        with pytest.raises(ConfigurationError, match=r"contains code, (posix|nt)\.mkdir, which is not run"):
            read_checkpoint(path)
    assert not (tmp_path / "witness").exists()


def unreadable(tmp_path: Path) -> dict[str, bytes]:
    path = tmp_path / "whole.pth"
    torch.save(shufflenet_v2_x0_5().state_dict(), path)
    whole = path.read_bytes()
    torch.save({"a": torch.ones(3)}, path, _use_new_zipfile_serialization=False)
    legacy = path.read_bytes()
    return {
        "empty": b"",
        "text": b"version https://git-lfs.github.com/spec/v1\n",
        "noise": bytes(range(256)) * 40,
        "half": whole[: len(whole) // 2],
        "legacy half": legacy[: len(legacy) // 2],
        "legacy end missing": legacy[:-4],
        **{
            f"pickle {rest!r}": b"\x80\x02" + rest
            for rest in (b"}q\x00X\x05", b"(K\x01K", b"]a.", b".", b"h\x00.", b"}K\x01K\x02u.", b"}(]K\x01u.")
        },
        "no arguments": b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(tR.",
    }


def hostile(state: dict[Any, Any]) -> dict[str, tuple[Any, str]]:
    """Checkpoints that load, and what their error says."""
    itself: dict[str, Any] = {}
    itself["state_dict"] = {"model": itself}
    weight = state["conv1.0.weight"]
    return {
        "itself": (itself, "no state dict but a dict with 'state_dict'"),
        "integers": ({1: weight, 2: weight}, "2 keys that must be text (1, 2)"),
        "tuple": ({**state, ("fc", 1): weight}, "1 key that must be text (('fc', 1))"),
        "bytes": ({**state, b"fc": weight}, "1 key that must be text (b'fc')"),
        "scalar": ({**state, "fc.weight": torch.tensor(1.0)}, "fc.weight is () instead of (7, 1024)"),
        "no classes": ({**state, "fc.weight": torch.zeros(0, 1024)}, "fc.weight is (0, 1024) instead of"),
        "no features": (
            {**state, "fc.weight": torch.zeros(10**12, 0)},
            "fc.weight is (1000000000000, 0) instead of",
        ),
        "expanded": (
            {**state, "fc.weight": torch.ones(()).expand(10**9, 1024)},
            "1 sparse, quantized, complex or expanded tensor (fc.weight)",
        ),
        "sparse": (
            {**state, "conv1.0.weight": weight.to_sparse()},
            "complex or expanded tensor (conv1.0.weight)",
        ),
        "complex": ({**state, "conv1.0.weight": weight + 1j}, "complex or expanded tensor (conv1.0.weight)"),
        "text": ({**state, "conv1.0.weight": "text"}, "conv1.0.weight is of type str"),
        "long key": ({**state, "k" * 100_000: weight}, "1 unexpected key (kkk"),
        "long key alone": ({"k" * 100_000: 1}, "no state dict but a dict with 'kkk"),
        "many keys": ({f"k{number}": 1 for number in range(100_000)}, "with 'k0', 'k1', 'k2', ...: save"),
    }


def test_a_checkpoint_that_unpacks_to_much_more_is_not_loaded(tmp_path, finetuned):
    whole, packed = tmp_path / "whole.pth", tmp_path / "packed.pth"
    torch.save({**finetuned.state_dict(), "zeros": torch.zeros(1)}, whole)
    for zeros, match in ((1, "unexpected key"), (250 << 20, "it unpacks to")):
        with zipfile.ZipFile(whole) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target:
            for name in source.namelist():
                target.writestr(name, source.read(name), zipfile.ZIP_STORED)
            target.writestr("whole/data/zeros", bytes(zeros), compresslevel=1)
        with pytest.raises(ConfigurationError, match=match):
            load_model("shufflenet_v2_x0_5", weights=packed)


def test_hostile_checkpoints_are_refused_in_one_short_sentence(tmp_path, finetuned):
    path = tmp_path / "hostile.pth"
    for name, (content, said) in hostile(finetuned.state_dict()).items():
        torch.save(content, path)
        with pytest.raises(ConfigurationError) as caught:
            load_model("shufflenet_v2_x0_5", weights=path)
        message = str(caught.value).replace("instead of (1000, 1024)", "instead of (7, 1024)")
        assert said in message and "\n" not in message and len(message) < 500, name


def test_files_that_are_not_checkpoints_are_reported_in_one_sentence(tmp_path):
    for name, content in unreadable(tmp_path).items():
        path = tmp_path / f"{name}.pth"
        path.write_bytes(content)
        with pytest.raises(ConfigurationError) as caught:
            load_model("shufflenet_v2_x0_5", weights=path)
        message = str(caught.value)
        assert str(path) in message and "\n" not in message, name
        assert "it is damaged, or no checkpoint" in message, name


@pytest.mark.parametrize(
    ("content", "named"), [({"epoch": 3}, "'epoch'"), ([torch.ones(1)], "list"), ({}, "dict")]
)
def test_files_without_a_state_dict_are_described(tmp_path, content, named):
    torch.save(content, tmp_path / "other.pth")
    with pytest.raises(ConfigurationError, match=f"no state dict.*{named}"):
        read_checkpoint(tmp_path / "other.pth")


def test_a_pickled_network_is_refused_with_advice(tmp_path, finetuned):
    torch.save(finetuned, tmp_path / "network.pth")
    with pytest.raises(ConfigurationError, match=r"state_dict\(\)"):
        read_checkpoint(tmp_path / "network.pth")


def test_missing_and_unexpected_keys_are_named(tmp_path, finetuned):
    state = finetuned.state_dict()
    state["extra.weight"] = torch.ones(1)
    del state["stage2.0.branch1.0.weight"]
    torch.save(state, tmp_path / "other.pth")
    with pytest.raises(ConfigurationError) as caught:
        load_model("shufflenet_v2_x0_5", weights=tmp_path / "other.pth")
    message = str(caught.value)
    assert "1 missing key (stage2.0.branch1.0.weight)" in message
    assert "1 unexpected key (extra.weight)" in message
    assert "shufflenet_v2_x0_5" in message


def test_tensors_with_another_shape_are_named_with_both_shapes(tmp_path, finetuned):
    state = finetuned.state_dict()
    state["conv1.0.weight"] = torch.ones(24, 1, 3, 3)
    torch.save(state, tmp_path / "gray.pth")
    with pytest.raises(
        ConfigurationError, match=r"conv1.0.weight is \(24, 1, 3, 3\) instead of \(24, 3, 3, 3\)"
    ):
        load_model("shufflenet_v2_x0_5", weights=tmp_path / "gray.pth")


@pytest.mark.parametrize(
    ("name", "value"),
    [("conv1.0.weight", "nan"), ("fc.bias", "inf"), ("stage3.0.branch1.1.running_var", "nan")],
)
def test_nan_and_infinity_are_refused(tmp_path, finetuned, name, value):
    state = {key: tensor.clone() for key, tensor in finetuned.state_dict().items()}
    state[name].flatten()[3] = float(value)
    torch.save(state, tmp_path / "broken.pth")
    with pytest.raises(ConfigurationError, match=rf"1 tensor with NaN or infinity \({name}\)"):
        load_model("shufflenet_v2_x0_5", weights=tmp_path / "broken.pth")


def test_names_of_the_network_may_start_like_a_prefix():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Linear(2, 3)

    net, wrapped = Net(), nn.DataParallel(Net()).state_dict()
    assert set(wrapped) == {"module.model.weight", "module.model.bias"}
    assert set(without_prefixes(wrapped, net.state_dict())) == {"model.weight", "model.bias"}
    load_checkpoint(net, wrapped, "test")
    torch.testing.assert_close(net.model.weight, wrapped["module.model.weight"])
    assert classes_in(wrapped, net) == 3


def test_the_number_of_classes_is_read_from_the_classifier(finetuned):
    assert classes_in(finetuned.state_dict(), shufflenet_v2_x0_5()) == 7
    assert classes_in({}, shufflenet_v2_x0_5()) is None


def test_a_plain_dict_loads_into_a_network_that_requires_version_metadata():
    source = mnasnet0_5()
    net = mnasnet0_5()
    load_checkpoint(net, dict(source.state_dict()), "test")
    torch.testing.assert_close(dict(net.state_dict()), dict(source.state_dict()), rtol=0, atol=0)
