"""Networks in DataParallel and torch.compile() have the layers of the network itself, whoever asks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from torch import nn

import ebcli
from ebcli.cli.saliency import main

NETS = """
import torch
from torch import nn

def net():
    torch.manual_seed(0)
    ends = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)
    return nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), *ends)

def parallel():
    wrapped = nn.DataParallel(net())
    wrapped.categories = ["a", "b", "c"]
    return wrapped

def compiled():
    return torch.compile(nn.DataParallel(net()), backend="eager")
"""
WRAPPERS: dict[str, Callable[[nn.Module], Any]] = {
    "parallel": nn.DataParallel,
    "compiled": lambda net: torch.compile(net, backend="eager"),
    "both": lambda net: torch.compile(nn.DataParallel(net), backend="eager"),
}


class OwnModule(nn.Module):
    """One whose part is called like that of a wrapper."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.module(x).mean((2, 3)))


def plain() -> nn.Module:
    scope: dict[str, Any] = {}
    exec(NETS, scope)
    net: nn.Module = scope["net"]().eval()
    return net


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_layers_have_the_names_of_the_network_itself(wrapper: str) -> None:
    net = plain()
    wrapped = WRAPPERS[wrapper](net)
    names = [name for name, _ in net.named_children()]
    assert [layer.name for layer in ebcli.layers(wrapped, 32)] == names
    assert ebcli.default_layer(wrapped) == ebcli.default_layer(net)
    x = torch.rand(1, 3, 32, 32)
    expected = ebcli.excitation_backprop(net, x, 1, "1")
    image = Image.fromarray(np.full((32, 32, 3), 99, np.uint8))
    expected_maps = ebcli.explain(net, image, layer="1", transform=_as_tensor).maps
    for name in ("1", "module.1", "_orig_mod.1", "_orig_mod.module.1"):
        assert torch.equal(ebcli.excitation_backprop(wrapped, x, 1, name).maps, expected.maps)
        maps = ebcli.explain(wrapped, image, layer=name, transform=_as_tensor).maps
        assert np.array_equal(maps, expected_maps)
    with pytest.raises(ebcli.LayerError, match=r"no layer 'module\.9'"):
        ebcli.excitation_backprop(wrapped, x, 1, "module.9")


def _as_tensor(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.asarray(image, np.float32) / 255).permute(2, 0, 1)


def test_a_part_that_is_called_module_keeps_its_name() -> None:
    net = OwnModule().eval()
    assert [layer.name for layer in ebcli.layers(net, 32)] == ["module.0", "module.1", "module", "head"]
    x = torch.rand(1, 3, 32, 32)
    expected = ebcli.excitation_backprop(net, x, 1, "module.1").maps
    assert torch.equal(ebcli.excitation_backprop(nn.DataParallel(net), x, 1, "module.1").maps, expected)


def test_the_command_lists_and_takes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nets.py").write_text(NETS)
    Image.new("RGB", (64, 64), "gray").save("a.png")
    tables = []
    for name in ("net", "parallel", "compiled"):
        listed = CliRunner().invoke(main, ["layers", "--model", f"nets.py:{name}"])
        assert listed.exit_code == 0, listed.output
        tables.append(listed.stdout)
        options = ["--workers", "0", "-o", f"{name}.png", "--layer", "module.1", "--target", "1", "-v"]
        if name == "net":
            continue
        done = CliRunner().invoke(main, ["a.png", "--model", f"nets.py:{name}", *options])
        assert done.exit_code == 0, done.output
        assert "layer 1, on " in done.stderr
    assert tables[0] == tables[1] == tables[2]
    assert ebcli.load_model("nets.py:parallel").categories == ("a", "b", "c")
