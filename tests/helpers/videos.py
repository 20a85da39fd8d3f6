"""Small videos whose maps are known, and a network for them."""

from collections.abc import Sequence
from pathlib import Path

import av
import numpy as np
from PIL import Image

SIDE = 32
SQUARE = 8

NETS = """
import torch
from torch import nn
from ebcli import Preprocessing

def colors():
    '''Logits are 20 times the mean of red, green and blue, so a map is the brightness of its color.'''
    pixels, classifier = nn.Conv3d(3, 3, 1, bias=False), nn.Linear(3, 3, bias=False)
    with torch.no_grad():
        pixels.weight.copy_(torch.eye(3)[:, :, None, None, None])
        classifier.weight.copy_(20 * torch.eye(3))
    net = nn.Sequential(pixels, nn.ReLU(), nn.Identity(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), classifier)
    net.task, net.frames, net.frame_rate = "video", 8, 10
    net.preprocessing = Preprocessing(resize=32, crop=32, mean=0.0, std=1.0)
    net.categories = ["red", "green", "blue"]
    return net

def pooled():
    '''The same with half as many cells in time, at layer "2".'''
    net = colors()
    net[2] = nn.AvgPool3d((2, 1, 1))
    return net
"""


def left(frame: int) -> int:
    """Where the red square is in a frame."""
    return min(frame, SIDE - SQUARE)


def moving_square(count: int = 20, size: tuple[int, int] = (SIDE, SIDE)) -> list[Image.Image]:
    """Frames in which a red square moves to the right, one pixel per frame; below it a blue one rests."""
    frames = []
    for frame in range(count):
        pixels = np.zeros((size[1], size[0], 3), np.uint8)
        pixels[4 : 4 + SQUARE, left(frame) : left(frame) + SQUARE, 0] = 255
        pixels[24:28, 4:8, 2] = 255
        frames.append(Image.fromarray(pixels))
    return frames


def write_video(
    path: Path, frames: Sequence[Image.Image], rate: int = 10, codec: str = "libx264", **options: str
) -> None:
    """Write frames by FFmpeg, nearly without loss."""
    with av.open(path, "w", options=options) as container:
        stream = container.add_stream(codec, rate=rate, options={"crf": "1"})
        stream.width, stream.height = frames[0].size
        stream.pix_fmt = "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_image(frame)))
        container.mux(stream.encode())


def write_frames(folder: Path, frames: Sequence[Image.Image], first: int = 1) -> None:
    """Write a directory of frames."""
    folder.mkdir(parents=True)
    for number, frame in enumerate(frames, first):
        frame.save(folder / f"frame{number}.png")


def read_video(path: Path) -> list[Image.Image]:
    """The frames of a video."""
    with av.open(path) as container:
        return [frame.to_image() for frame in container.decode(video=0)]
