"""Image processors of Hugging Face, measured: what they do to synthetic images tells the equivalent preprocessing."""

from dataclasses import replace
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from ebcli.errors import ConfigurationError
from ebcli.models.keywords import CROP, PAD, SQUASH, WHOLE
from ebcli.nouns.input_spec import InputSpec

_RAMP = 1000  # pixels
_LONG = 8  # times as wide as high, more than any limit of the longer side


def spec_of(processor: Any, name: str, *, of_video: bool = False, keeps_shape: bool = False) -> InputSpec:
    """The preprocessing equivalent to an image or video processor, measured on synthetic images.

    The values of black and white pixels give mean and standard deviation; the slopes of ramps from black to white
    give the size to which a square is resized before the center crop, and ramps twice as wide as high tell how other
    images are fitted.

    Args:
        processor: the processor.
        name: the network's name, for messages.
        of_video: it is for frames.
        keeps_shape: where the size of the processor's output follows the image, the network gets whole images.

    Raises:
        ConfigurationError: the processor does something else.
    """
    if getattr(processor, "do_flip_channel_order", False):
        raise ConfigurationError(f"{name} expects channels in the order blue, green, red, which is not supported")
    if not getattr(processor, "do_resize", True):
        raise ConfigurationError(f"{name} does not resize its input, which is not supported")

    def processed(*images: Tensor) -> Tensor:
        made: Tensor = processor(list(images), return_tensors="pt")["pixel_values"].double()
        return made.flatten(0, 1) if made.ndim == 5 else made  # processors for video take an image for a video

    ramp = torch.linspace(0, 255, _RAMP).expand(3, _RAMP, _RAMP).contiguous()
    made = processed(*(torch.full_like(ramp, value, dtype=torch.uint8) for value in (0, 255)))
    size = height, width = made.shape[2], made.shape[3]
    black, white = made[:, :, height // 2, width // 2]  # (3,) each
    mean, std = _rounded(-black / (white - black)), _rounded(1 / (white - black))
    spec = InputSpec(size, mean=mean, std=std, resample=Image.Resampling(int(processor.resample)))
    if of_video:  # their processors take 8 bits only, and say how they resize
        return replace(spec, resize=(processor.size.get("shortest_edge") or processor.size["height"],))

    def slope(image: Tensor, dim: int) -> float:
        """Mean difference between adjacent rows (0) or columns (1), in units of white minus black."""
        low, high = size[dim] * 3 // 8, size[dim] - 1 - size[dim] * 3 // 8  # clear of padding, also in wide images
        profile = image.select(2 - dim, size[1 - dim] // 2)  # (3, side)
        return ((profile[:, high] - profile[:, low]) / (high - low) / (white - black)).mean().item()

    made = processed(ramp, ramp.mT.contiguous())
    across, down = (round(_RAMP / (_RAMP - 1) / slope(image, dim)) for image, dim in zip(made, (1, 0), strict=True))
    spec = replace(spec, resize=(across,) if across == down else (down, across))
    wide = ramp[:, : _RAMP // 2]
    made = processed(wide, torch.linspace(0, 255, _RAMP // 2)[:, None].expand_as(wide).contiguous())
    if made.shape[2:] != size:  # not cropped: the network's input follows the image
        longest = max(processed(ramp[:, : _RAMP // _LONG]).shape[2:])
        return replace(spec, fit=WHOLE, longest=longest) if keeps_shape else spec
    slopes = slope(made[0], 1), slope(made[1], 0)
    if across != down or slopes[1] < 1.5 * slopes[0]:
        return replace(spec, fit=SQUASH)
    return replace(spec, fit=CROP if slopes[0] * across < 0.75 else PAD)


def _rounded(values: Tensor) -> tuple[float, ...]:
    """Numbers without the rounding errors of float32."""
    return tuple(round(value, 6) + 0.0 for value in values.tolist())  # no -0.0
