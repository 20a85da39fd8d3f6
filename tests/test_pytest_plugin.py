"""The fixture of pytest, in a session of its own."""

import multiprocessing
import os
import sys
from pathlib import Path

import pytest
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

def test_loaded(saliency_unchanged):
    saliency_unchanged("base", ebcli.load_model(net(0)), min_correlation=0.99)
    names = ["a", "b", "c", "d", "e"]
    custom = ebcli.Preprocessing(resize=32, crop=32)
    loaded = ebcli.load_model("test_maps.py:small", preprocessing=custom, class_names=names)
    saliency_unchanged("base", loaded, min_correlation=0.99)

def test_no_network(saliency_unchanged):
    saliency_unchanged("base", 3)

def test_moved(saliency_unchanged):
    saliency_unchanged("base", net(1))

def test_wrong(saliency_unchanged):
    saliency_unchanged("nowhere")
"""


def _session(folder: Path) -> None:
    """The tests, in a process that has imported PyTorch."""
    os.chdir(folder)
    os.dup2(os.open("printed", os.O_WRONLY | os.O_CREAT), 1)
    pytest.main(["-q", "test_maps.py", "--basetemp=kept"])
    sys.stdout.flush()


@pytest.mark.release
def test_a_network_whose_maps_moved_fails_with_a_sentence_and_the_picture(working_directory: Path) -> None:
    assert callable(_fixture)
    photos(Path("photos"), 2)
    Path("test_maps.py").write_text(TESTS)
    run = ["photos", "--model", "test_maps.py:small", "--target", "3", "--raw", "-o", "base", "--layer", "1"]
    assert Forked(Path.cwd(), *run).wait() == 0
    session = multiprocessing.get_context("forkserver").Process(target=_session, args=(Path.cwd(),))
    session.start()
    session.join(timeout=300)
    printed = Path("printed").read_text()
    assert "3 failed, 2 passed" in printed, printed
    assert "saliency_unchanged's network returned a int, but a torch.nn.Module" in printed
    assert "the saliency maps changed, see " in printed
    assert "class 3: correlation " in printed
    page = Path("kept/test_moved0/saliency/comparison/index.html")
    assert f"see {page.absolute()}\n" in printed
    assert list(page.parent.glob("*.png"))
    assert "Error: cannot read 'nowhere/settings.toml'" in printed
