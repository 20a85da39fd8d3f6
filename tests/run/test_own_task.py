"""A made-up task in one file: the brightest point of each color."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from color_net import GREEN, RED, painted

from ebcli.cli.saliency import main
from ebcli.errors import ConfigurationError
from ebcli.run.tasks.task import REGISTRY, register

FILE = """
import ebcli
import torch
from ebcli.run.tasks.task import Task, register
from torch import nn


class Colors(nn.Module):
    task, scores, categories = "points", "raw", ("red", "green", "blue")
    preprocessing = ebcli.Preprocessing(resize=32, crop=32, mean=0.0, std=1.0)

    def __init__(self):
        super().__init__()
        self.pixels = nn.Conv2d(3, 3, 1, bias=False)
        self.points = nn.Conv2d(3, 3, 1, bias=False)
        self.pixels.weight.data = self.points.weight.data = torch.eye(3)[:, :, None, None]

    def forward(self, x):
        return self.points(self.pixels(x).relu())


def subjects(scores, asked):
    found = []
    for index in range(3):
        point = divmod(int(scores[..., index].argmax()), scores.shape[1])
        found.append(asked.subject(index, float(scores[(*point, index)]), where=point))
    return [one for one in found if one.score > 0.25]


register("points", Task(subjects, "networks for points"))
"""


@pytest.fixture(autouse=True)
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(REGISTRY, "points", raising=False)
    Path("points.py").write_text(FILE)
    dim = (40, 0, 0)
    # 64 x 48 pixels, of which the network sees 32 x 32, from 5.33 to 26.67
    painted((64, 48), (dim, (10, 10, 40, 30)), (RED, (30, 12, 33, 15)), (GREEN, (12, 30, 15, 33))).save(
        "a.png"
    )


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(
        main,
        ["--model", "points.py:Colors", "--layer", "pixels", "--fit", "crop", "--workers", "0", *arguments],
    )


def test_its_subjects_are_explained_at_their_points() -> None:
    result = invoke("--json", "--raw", "--marginal", "a.png")
    assert result.exit_code == 0, result.stderr
    record = json.loads(result.stdout)
    assert [one["name"] for one in record["classes"]] == ["red", "green"]
    assert len(record["output"]) == 3
    maps = np.load(record["output"][-1])["maps"]
    assert maps.shape == (2, 32, 32)
    points = [np.unravel_index(map_.argmax(), map_.shape) for map_ in maps]
    # the middles of the squares at (31.5, 13.5) and (13.5, 31.5), less the 8 columns that are cropped, times 2/3
    assert points == [(8, 15), (20, 3)]
    assert [map_[point] for map_, point in zip(maps, points, strict=True)] == pytest.approx([1, 1])


def test_options_of_other_tasks_are_refused_and_its_name_is_its_own() -> None:
    result = invoke("--where", "1,2,3,4", "a.png")
    assert result.exit_code == 2
    assert (
        "--where X,Y,W,H works only with detectors, but points.py:Colors is for points: drop it"
        in result.stderr
    )
    with pytest.raises(ConfigurationError, match="there is a task 'detection' already"):
        register("detection", REGISTRY["segmentation"])
