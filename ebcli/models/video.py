"""The preprocessing of networks for video: how clips are cut, resized, cropped and normalized."""

from __future__ import annotations

from torch import nn
from torchvision.transforms._presets import VideoClassification

# Frames per clip and frames per second, by which torchvision measured its weights:
# https://docs.pytorch.org/vision/stable/models.html#video-classification
_CLIPS = {
    "r3d_18": (16, 15.0),
    "mc3_18": (16, 15.0),
    "r2plus1d_18": (16, 15.0),
    "s3d": (128, 15.0),
    "mvit_v1_b": (16, 7.5),
    "mvit_v2_s": (16, 7.5),
    "swin3d_t": (32, 15.0),
    "swin3d_s": (32, 15.0),
    "swin3d_b": (32, 15.0),
}
_USUAL = 16, 15.0


class VideoPreset(VideoClassification):  # type: ignore[misc]  # torchvision has no types
    """A preset of torchvision that also says how clips are cut: it maps frames (T, C, H, W) to a clip (C, T, H, W).

    Args:
        preset: the size of frames and their normalization.
        frames: frames per clip.
        frame_rate: frames per second.
    """

    def __init__(self, preset: VideoClassification, frames: int, frame_rate: float) -> None:
        super().__init__(
            crop_size=preset.crop_size,
            resize_size=preset.resize_size,
            mean=preset.mean,
            std=preset.std,
            interpolation=preset.interpolation,
        )
        self.frames, self.frame_rate = frames, frame_rate

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}    frames={self.frames}\n    frame_rate={self.frame_rate}\n)"


def preset_of(name: str, preset: VideoClassification) -> VideoPreset:
    """The preset of one of torchvision's networks with its frames per clip and frame rate."""
    return VideoPreset(preset, *_CLIPS.get(name, _USUAL))


def usual_preset(net: nn.Module) -> VideoPreset:
    """The preset of torchvision's video ResNets, with ``net.frames`` and ``net.frame_rate`` if they are numbers."""
    usual = VideoClassification(crop_size=(112, 112), resize_size=(128,))
    frames, rate = getattr(net, "frames", None), getattr(net, "frame_rate", None)
    return VideoPreset(
        usual,
        frames if isinstance(frames, int) and frames > 0 else _USUAL[0],
        float(rate) if isinstance(rate, (int, float)) and rate > 0 else _USUAL[1],
    )
