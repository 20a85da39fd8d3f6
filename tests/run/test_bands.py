"""Which band mattered: of ten bands of which two decide."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from torch import nn

import ebcli
from ebcli.cli.saliency import main

BANDS = {0: 3, 1: 7}  # the band that decides each class, from 0
NETS = """
import torch, ebcli
from torch import nn

def bands():
    pixels, last = nn.Conv2d(10, 10, 1, bias=False), nn.Linear(10, 2, bias=False)
    with torch.no_grad():
        pixels.weight.copy_(torch.eye(10)[:, :, None, None])
        last.weight.copy_(torch.eye(10)[[3, 7]])
    net = nn.Sequential(pixels, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), last)
    net.preprocessing = ebcli.Preprocessing(resize=16, crop=16)
    return net
"""


def made() -> nn.Module:
    names: dict[str, object] = {}
    exec(NETS, names)
    net = names["bands"]()  # type: ignore[operator]
    assert isinstance(net, nn.Module)
    return net


@pytest.mark.parametrize("first", [True, False])
def test_shares_are_those_of_the_bands_that_decide(first: bool) -> None:
    image = np.random.default_rng(0).random((10, 16, 16)).astype(np.float32)
    given = image if first else np.moveaxis(image, 0, -1)
    found = ebcli.explain(made(), given, [0, 1], layer="input", contrastive=False)
    for shares, (_, band) in zip(found.channels, BANDS.items(), strict=True):
        assert len(shares) == 10
        assert shares[band] == pytest.approx(1)
        assert sum(shares) == pytest.approx(1)
    both = made()
    with torch.no_grad():
        both[4].weight[0, 7] = 2
    inputs = torch.from_numpy(image)
    (shares,) = ebcli.explain(both, inputs, 0, layer="input", contrastive=False).channels
    weights = image[[3, 7]].sum((1, 2)) * [1, 2]
    assert [shares[3], shares[7]] == pytest.approx(weights / weights.sum(), abs=1e-5)
    assert ebcli.explain(both, inputs, 0, layer="1").channels == [()]


def test_records_and_panels_show_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nets.py").write_text(NETS)
    np.save("image.npy", np.random.default_rng(0).random((10, 16, 16)).astype(np.float32))
    arguments = [
        "image.npy",
        "--model",
        "nets.py:bands",
        "--layer",
        "input",
        "--target",
        "0",
        "--target",
        "1",
    ]
    result = CliRunner().invoke(main, [*arguments, "--panel", "-o", "maps"])
    assert result.exit_code == 0, result.stderr
    record = json.loads(Path("maps/records.jsonl").read_text())
    for one, band in zip(record["classes"], BANDS.values(), strict=True):
        assert len(one["channels"]) == 10
        assert int(np.argmax(one["channels"])) == band
    panel = np.asarray(Image.open(record["output"][0]))
    bars = (panel == 150).all(-1)  # the two maps' bars for the bands that decide are the highest
    assert bars.any(0).sum() > 20
