"""The preprocessing of networks for video: how clips are cut, resized, cropped and normalized."""

from torch import nn
from torchvision.transforms._presets import VideoClassification

from ebcli.nouns.input_spec import InputSpec

# Frames per clip and frames per second, by which torchvision measured its weights:
# https://docs.pytorch.org/vision/stable/models.html#video-classification
_CLIPS = {
    "s3d": (128, 15.0),
    "mvit_v1_b": (16, 7.5),
    "mvit_v2_s": (16, 7.5),
    "swin3d_t": (32, 15.0),
    "swin3d_s": (32, 15.0),
    "swin3d_b": (32, 15.0),
}
_USUAL = 16, 15.0  # as of the ResNets


def preset_of(name: str, preset: VideoClassification) -> InputSpec:
    """The preset of one of torchvision's networks with its frames per clip and frame rate."""
    return InputSpec.of(preset, *_CLIPS.get(name, _USUAL))


def usual_preset(net: nn.Module) -> InputSpec:
    """The preset of torchvision's video ResNets, with ``net.frames`` and ``net.frame_rate`` if they are numbers."""
    frames, rate = getattr(net, "frames", None), getattr(net, "frame_rate", None)
    return InputSpec.of(
        VideoClassification(crop_size=(112, 112), resize_size=(128,)),
        frames if isinstance(frames, int) and frames > 0 else _USUAL[0],
        float(rate) if isinstance(rate, (int, float)) and rate > 0 else _USUAL[1],
    )
