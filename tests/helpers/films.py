"""Runs of a network for images over videos, and what they write."""

import csv
from pathlib import Path

import numpy as np
from click.testing import CliRunner, Result
from numpy.typing import NDArray
from videos import read_video

from ebcli.cli.saliency import main

NETS = """
import sys
from ebcli import Preprocessing
from color_net import color_net
import color_tasks

def count(*_):
    with open("calls.txt", "a") as calls:
        calls.write("x")

def colors():
    '''Logits are 20 times the mean of red, green and blue, so a marginal map is the brightness of its color.'''
    net = color_net()
    net.preprocessing = Preprocessing(resize=32, crop=32, mean=0.0, std=1.0)
    net.categories = ["red", "green", "blue"]
    net.register_forward_hook(count)
    return net

def unsure():
    '''The same, whose scores of black frames are no numbers.'''
    net = colors()
    net.register_forward_hook(lambda net, inputs, output: output / (inputs[0].amax((1, 2, 3)) > 0)[:, None])
    return net

def narrow():
    '''The same, for which memory runs out at three frames.'''
    net = colors()
    def check(net, inputs):
        if len(inputs[0]) > 2:
            raise RuntimeError("out of memory")
    net.register_forward_pre_hook(check)
    return net

detector, segmenter = color_tasks.detector, color_tasks.Segmenter
"""


def run(*arguments: str, model: str = "colors", layer: str | None = "2", workers: int = 0) -> Result:
    options = ["--model", f"nets.py:{model}", "--workers", str(workers)]
    if layer is not None:
        options += ["--layer", layer]
    return CliRunner().invoke(main, [*options, *arguments])


def outputs(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


GRAY = ("--style", "heatmap", "--cmap", "gray", "--marginal", "--target", "red")


def levels(path: Path) -> NDArray[np.floating]:
    """The gray values (frames, h, w) of a video drawn as a gray heatmap."""
    return np.stack([np.asarray(frame.convert("L"), float) for frame in read_video(path)])


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return [*csv.DictReader(file)]
