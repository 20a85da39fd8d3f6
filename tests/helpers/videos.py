"""Small videos whose maps are known, and a network for them."""

import struct
from collections.abc import Sequence
from fractions import Fraction
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


def fill_folder(folder: Path, nets: str) -> None:
    """Write the code of networks, nets.py, and a video of 20 frames in which a square moves, move.mp4."""
    (folder / "nets.py").write_text(nets)
    write_video(folder / "move.mp4", moving_square(20))


def write_frames(folder: Path, frames: Sequence[Image.Image], first: int = 1) -> None:
    """Write a directory of frames."""
    folder.mkdir(parents=True)
    for number, frame in enumerate(frames, first):
        frame.save(folder / f"frame{number}.png")


def read_video(path: Path) -> list[Image.Image]:
    """The frames of a video."""
    with av.open(path) as container:
        return [frame.to_image() for frame in container.decode(video=0)]


def times_of(path: Path) -> list[float]:
    with av.open(path) as container:
        return [frame.time for frame in container.decode(video=0)]


def write_uneven(path: Path, frames: Sequence[Image.Image], times: Sequence[int]) -> None:
    """A video without loss, whose frames are shown at times in milliseconds."""
    with av.open(path, "w") as container:
        stream = container.add_stream("libx264rgb", rate=10, options={"qp": "0"})
        stream.width, stream.height = frames[0].size
        stream.pix_fmt = "rgb24"
        stream.time_base = stream.codec_context.time_base = Fraction(1, 1000)
        for frame, moment in zip(frames, times, strict=True):
            picture = av.VideoFrame.from_image(frame)
            picture.pts = moment
            picture.time_base = stream.codec_context.time_base
            container.mux(stream.encode(picture))
        container.mux(stream.encode())


def add_sound(source: Path, target: Path, seconds: float, silence: float = 0) -> None:
    """The same video with a tone after some seconds of silence."""
    with av.open(source) as silent, av.open(target, "w") as container:
        pictures = silent.streams.video[0]
        copy = container.add_stream_from_template(pictures)
        sound = container.add_stream("aac", rate=48000)
        for packet in silent.demux(pictures):
            if packet.dts is not None:
                packet.stream = copy
                container.mux(packet)
        tone = np.sin(np.arange(int(48000 * seconds)) * 0.05).astype(np.float32)
        tone[: int(48000 * silence)] = 0
        for first in range(0, len(tone), 1024):
            frame = av.AudioFrame.from_ndarray(tone[None, first : first + 1024], format="flt", layout="mono")
            frame.rate = 48000
            frame.pts = first
            container.mux(sound.encode(frame))
        container.mux(sound.encode())


def rotated(content: bytes, width: int) -> bytes:
    """An MP4 file whose display matrix turns frames by 90° clockwise, as in ISO/IEC 14496-12, 6.2.2."""
    matrix = content.index(b"tkhd") + 44
    one = 1 << 16
    turned = struct.pack(">9i", 0, one, 0, -one, 0, 0, width * one, 0, 1 << 30)
    return content[:matrix] + turned + content[matrix + len(turned) :]


def break_packet(source: Path, target: Path, number: int) -> None:
    """The same video with one packet that no decoder can read."""
    with av.open(source) as container:
        packet = [packet for packet in container.demux(video=0) if packet.size][number]
        content = bytearray(source.read_bytes())
        content[packet.pos + 4 : packet.pos + packet.size] = bytes(packet.size - 4)
    target.write_bytes(content)
