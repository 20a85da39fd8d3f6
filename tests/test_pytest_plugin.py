"""The fixture of pytest, in a session of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from runs import Forked, photos

from ebcli.pytest_plugin import saliency_unchanged as _fixture

TESTS = """
import torch
import ebcli

def net(seed):
    torch.manual_seed(seed)
    parts = torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()
    found = torch.nn.Sequential(*parts, torch.nn.Linear(8, 5))
    found.preprocessing = ebcli.Preprocessing(resize=32, crop=32)
    return found

def small():
    return net(0)

def test_same(saliency_unchanged):
    saliency_unchanged("base")
    saliency_unchanged("base", net(0), min_correlation=0.99)

def test_moved(saliency_unchanged):
    saliency_unchanged("base", net(1))

def test_wrong(saliency_unchanged):
    saliency_unchanged("nowhere")
"""


def test_a_network_whose_maps_moved_fails_with_a_sentence_and_the_picture(working_directory: Path) -> None:
    assert callable(_fixture)
    photos(Path("photos"), 2)
    Path("test_maps.py").write_text(TESTS)
    run = ["photos", "--model", "test_maps.py:small", "--target", "3", "--raw", "-o", "base", "--layer", "1"]
    assert Forked(Path.cwd(), *run).wait() == 0
    command = [sys.executable, "-m", "pytest", "-q", "test_maps.py", "--basetemp=kept"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert "2 failed, 1 passed" in done.stdout, done.stdout
    assert "the saliency maps changed, see " in done.stdout
    assert "class 3: correlation " in done.stdout
    page = Path("kept/test_moved0/saliency/comparison/index.html")
    assert f"see {page.absolute()}\n" in done.stdout
    assert list(page.parent.glob("*.png"))
    assert "Error: cannot read 'nowhere/settings.toml'" in done.stdout
