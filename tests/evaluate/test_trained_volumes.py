"""A trained 3-D network: its map is on the ball, not on the cubes. `benchmarks/trained/balls.py` made the weights."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn

import ebcli
from benchmarks.trained.balls import SIDE, WEIGHTS, network, shares, volumes
from ebcli.cli.saliency import main

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def net() -> nn.Module:
    net = network()
    net.load_state_dict(torch.load(WEIGHTS, weights_only=True))
    return net.eval()


def test_the_map_is_on_the_ball(net: nn.Module) -> None:
    drawn = volumes(48, torch.Generator().manual_seed(3))
    with torch.no_grad():
        assert (net(drawn.values).argmax(1) == drawn.labels).float().mean() > 0.95
    asked = volumes(24, torch.Generator().manual_seed(4), balls=1.0)
    for layer in (None, ebcli.default_layer(net, (SIDE,) * 3)):
        assert shares(net, asked, layer).mean() > 0.9


def test_the_command_puts_it_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    factory = "from benchmarks.trained.balls import network\n\n\ndef ball():\n    return network()\n"
    Path("nets.py").write_text(f"import sys\n\nsys.path.append({str(ROOT)!r})\n{factory}")
    drawn = volumes(2, torch.Generator().manual_seed(5), balls=1.0)
    for i, one in enumerate(drawn.values.numpy()):
        np.save(f"{i}.npy", one)
    options = (
        *"--model nets.py:ball --weights".split(),
        str(WEIGHTS),
        *"--target 1 --raw --json --workers 0".split(),
    )
    done = CliRunner().invoke(main, [*options, "0.npy", "1.npy"])
    assert done.exit_code == 0, done.output
    for line, box in zip(done.stdout.splitlines(), drawn.boxes.tolist(), strict=True):
        record = json.loads(line)
        assert record["classes"][0]["score"] > 0.5
        (map_,) = np.load(record["output"][2])["maps"].clip(min=0)
        cell = SIDE // len(map_)
        at = np.unravel_index(map_.argmax(), map_.shape)
        assert all(first <= cell * (i + 0.5) < end for i, (first, end) in zip(at, box, strict=True))
