"""What a network gets of an image or of the frames of a video, and where in it that lies."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ebcli.datatypes.arrays import AnyArray, FloatArray, Shape
from ebcli.datatypes.explanation import Box, Interval, Size
from ebcli.errors import ConfigurationError, ImageError, plural

if TYPE_CHECKING:
    from torch import Tensor

HeightWidth = tuple[int, int]
Transform = Callable[[Image.Image], Any]

_LONGEST_RESIZED = 8192  # pixels; an image resized to more is wider than any photo
_USUAL_SIDE = 224  # pixels, to try networks that take images of any size
_USUAL_VOLUME = 64  # cells a side, likewise
_HIGHEST = {"uint8": 255.0, "uint16": 65535.0}
_MOST_ELONGATED = 32  # times as long as wide, of images that are explained whole: 63 tiles
_TOLERANCE = 0.02  # of a side; 8 bits tell places of a side apart to 0.004
_STRIDE = 32  # pixels, of the coarsest layers of nearly all networks for photos
_CELLS = 7  # a side in these layers, so those of networks for smaller images have smaller strides
_MEAN = (0.485, 0.456, 0.406)  # of ImageNet
_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class InputSpec:
    """What a network gets, and the preprocessing that makes it: resize, center crop, normalize.

    A call does all three, as torchvision's presets do: a Pillow image or a tensor (..., C, H, W) becomes the input
    (..., C, height, width); frames (T, C, H, W) become a clip (C, T, height, width).

    Attributes:
        size: height and width of the center crop; smaller images are padded. None for networks that take whole images
            of any size.
        resize: the length after resizing of the shorter side (``fit="crop"``), of both sides (``"squash"``) or of the
            longer side (``"pad"``); or height and width. None for images as they are.
        fit: ``"crop"``, ``"squash"``, ``"pad"``, which pads with the mean color, or ``"whole"``: the whole image at its
            own aspect ratio, for networks that take images of any size; the longer side is rounded, see ``step``.
        mean, std: normalization of pixels from 0 to 1, per channel; or one number for all.
        resample: Pillow's filter.
        frames: frames per clip; None for images.
        rate: frames per second.
        tiles: of ``"whole"``, the number of tiles across the shorter side, each as large as the network's input; 0 for
            the whole image at once.
        stride: the network's largest stride in pixels, if it is no power of two; None if it is one.
        longest: of ``"whole"``, the most that the longer side may have; None for no limit.
        fill: of ``"pad"``, the value of padding, from 0 to 255; None for the mean color.
        channels: channels of the input; photos become gray for 1.
        depth: slices of a volume; 0 for networks that take volumes of any depth, None for images and videos.
        orientation: where x, y and z of volumes lead, such as ``"RAS"``; empty for the axes of the file.
        selected: the channels of an array that the network gets, from 1; empty for all.
        bands: the channels of an array that pictures show as red, green and blue, from 1; empty for the first ones.
        range: the values of an array that become 0 and 1; None for the whole range of 8 and 16 bits without a sign, and
            other values as they are.
        network: the network's name, for messages.
        function: makes the input (C, height, width) of an upright RGB image, in place of all of the above.
    """

    size: HeightWidth | None
    _: KW_ONLY
    resize: Shape | None = (256,)
    fit: str = "crop"
    mean: tuple[float, ...] = _MEAN
    std: tuple[float, ...] = _STD
    resample: Image.Resampling = Image.Resampling.BILINEAR
    frames: int | None = None
    rate: float = 0.0
    tiles: int = 0
    stride: int | None = None
    longest: int | None = None
    fill: int | None = None
    channels: int = 3
    depth: int | None = None
    orientation: str = ""
    selected: Shape = ()
    bands: Shape = ()
    range: Interval | None = None
    network: str = field(default="the network", compare=False, repr=False)
    function: Transform | None = field(default=None, repr=False)

    @classmethod
    def from_preset(cls, preset: Any, frames: int | None = None, rate: float = 0.0) -> InputSpec:
        """The settings of one of torchvision's presets; those for whole images lack some."""
        if isinstance(preset, InputSpec):
            return preset
        interpolation = getattr(preset, "interpolation", Image.Resampling.BILINEAR)
        options: dict[str, Any] = {
            "frames": frames,
            "rate": rate,
            "resample": Image.Resampling[interpolation.name],
        }
        for option, attribute in (("resize", "resize_size"), ("mean", "mean"), ("std", "std")):
            numbers = getattr(preset, attribute, None)
            if numbers:
                options[option] = tuple(numbers)
        crop = getattr(preset, "crop_size", None)
        return cls.as_is(crop and (crop[0], crop[-1]), **options)

    @property
    def axes(self) -> str:
        """The input's axes behind the channels: ``"HW"`` of images, ``"THW"`` of clips, ``"DHW"`` of volumes."""
        if self.frames is not None:
            return "THW"
        return "HW" if self.depth is None else "DHW"

    @property
    def shape(self) -> Shape:
        """The lengths of the axes of what a network gets, or of what to try it with."""
        if self.depth is not None:
            return self.depth or _USUAL_VOLUME, *(self.size or (_USUAL_VOLUME, _USUAL_VOLUME))
        sides = self.size or (_USUAL_SIDE, _USUAL_SIDE)
        if self.frames:
            return self.frames, *sides
        return sides

    @classmethod
    def as_is(cls, size: HeightWidth | None = None, channels: int = 3, **options: Any) -> InputSpec:
        """That of inputs which are as the network gets them, unless more is known; for others, see the class."""
        return cls(size, **{"resize": None, **_unscaled(channels), **options})

    @property
    def of_volumes(self) -> InputSpec:
        """The same for volumes of any size."""
        return replace(self, size=None, resize=None, fit="squash", depth=0)

    def with_channels(self, count: int) -> InputSpec:
        """The same with so many channels, whose values are not normalized unless there are as many already."""
        if count == self.channels:
            return self
        return replace(self, **_unscaled(count))

    def check_channels(self, count: int) -> None:
        """Raise ImageError if data with that many channels does not fit the network."""
        if count == self.channels:
            return
        problem = f"it has {plural(count, 'channel')}, but {self.network} takes {self.channels}"
        if count == 1 < self.channels < 4:
            problem += f": repeat it with EB_SALIENCY_CHANNELS={','.join('1' * self.channels)}"
        raise ImageError(problem)

    def place(self, size: Size) -> Box:
        """Where the network looks in an upright image of ``size`` (width, height)."""
        if self.function is not None:
            return measure_placement(self.function, size)
        if self._crop is None:
            return Box(0, 0, *size)
        new = self._new_size(size)
        return _center_box(new, self._crop).rescale(new, size)

    def read(self, image: Image.Image) -> AnyArray:
        """What the network gets of an image or a frame, (height, width, C): to the pixel what torchvision makes of it.

        Of images more than 30 times as long as wide, values may differ in rounding.

        Raises:
            ImageError: the image has another number of channels than the network takes.
        """
        if self.function is not None:
            return call_transform(self.function, image)
        image = self._in_channels(image)
        pixels = self._crop_image(image, self._fill) if self.frames is None else self._of_frame(image)
        return pixels.reshape(*pixels.shape[:2], self.channels)

    def read_array(self, values: AnyArray) -> FloatArray:
        """What the network gets of an array (C, H, W), (height, width, C), or of a volume (C, D, H, W).

        Values that are not finite are no data. In their place, it gets the mean that is subtracted.

        Raises:
            ImageError: it has other channels than the network takes.
        """
        if values.ndim == 4:
            return self._read_volume(values)
        count = len(values)
        for option, numbers in (("channels", self.selected), ("bands", self.bands)):
            highest = max(numbers, default=0)
            if highest > count:
                raise ImageError(f"it has {plural(count, 'channel')}, but {option} names channel {highest}")
        if self.selected:
            values = values[[number - 1 for number in self.selected]]
        self.check_channels(len(values))
        bands = []
        for band, mean in zip(values, np.broadcast_to(self.mean, self.channels).tolist(), strict=True):
            levels = self.to_unit_range(band)
            image = Image.fromarray(np.where(np.isfinite(levels), levels, np.float32(mean)))
            bands.append(self._crop_image(image, mean if self.fit == "pad" else 0.0))
        return np.stack(bands, axis=-1)

    def _read_volume(self, values: AnyArray) -> FloatArray:
        planes = np.stack([self.read_array(plane) for plane in values.swapaxes(0, 1)])
        if self.depth in (0, len(planes)):
            return planes
        cells = Image.fromarray(planes.reshape(len(planes), -1))
        resized = np.asarray(cells.resize((cells.width, self.depth or 0), self.resample))
        return resized.reshape(-1, *planes.shape[1:])

    def to_unit_range(self, values: AnyArray) -> FloatArray:
        """The values of an array, those in ``range`` from 0 to 1."""
        low, high = self.range or (0.0, _HIGHEST.get(values.dtype.name, 1.0))
        with np.errstate(over="ignore"):
            return (np.asarray(values, np.float32) - np.float32(low)) / np.float32(high - low)

    def _in_channels(self, image: Image.Image) -> Image.Image:
        """The image in gray if the network takes one channel."""
        if self.channels == 1 and image.mode == "RGB":
            return image.convert("L")
        self.check_channels(len(image.getbands()))
        return image

    def _crop_image(self, image: Image.Image, fill: Any) -> AnyArray:
        new = self._new_size(image.size)
        crop_size = self._crop
        if image.size != new and (crop_size is None or max(new) <= _LONGEST_RESIZED):
            image = image.resize(new, self.resample)
        if crop_size is None:
            return np.asarray(image)
        crop = _center_box(new, crop_size)
        canvas = Image.new(image.mode, crop_size, fill)
        left, top = map(int, crop[:2])
        if image.size == new:
            canvas.paste(image, (-left, -top))
            return np.asarray(canvas)
        # A strip of 10000 x 3 pixels would grow to 853333 x 256: only what survives the crop is made. Given a part,
        # Pillow may take width and height in another order and so round otherwise; hence not for all images.
        visible = crop.intersection(Box(0, 0, *new))
        x, y, width, height = map(int, visible.xywh)
        part = image.resize((width, height), self.resample, box=visible.rescale(new, image.size))
        canvas.paste(part, (x - left, y - top))
        return np.asarray(canvas)

    def normalize(self, pixels: AnyArray) -> Tensor:
        """Pixels (B, ..., H, W, C), of 8 bits or from 0 to 1, as the network's input (B, C, ..., H, W)."""
        import torch

        if not pixels.flags.writeable:
            pixels = pixels.copy()  # torch warns of arrays that it may not write to
        images = torch.from_numpy(pixels).movedim(-1, 1).contiguous()
        if pixels.dtype == np.uint8:
            images = images / 255
        shape = (-1, *(1 for _ in images.shape[2:]))  # of one number for all channels, too
        mean, std = (torch.tensor(values).reshape(shape) for values in (self.mean, self.std))
        return images.sub(mean).div_(std)

    def __call__(self, image: Any) -> Tensor:
        import torch
        from torchvision.transforms import InterpolationMode, functional

        if self.function is not None:
            return self.function(image)
        _, height, width = functional.get_dimensions(image)
        size = self._new_size((width, height))[::-1]
        # torchvision resizes frames without antialiasing
        mode = InterpolationMode[self.resample.name]
        image = functional.resize(image, size, mode, antialias=self.frames is None)
        if not isinstance(image, torch.Tensor):
            image = functional.pil_to_tensor(self._in_channels(image))
        values = functional.convert_image_dtype(image, torch.float)
        if self._crop is not None:
            fill = torch.tensor(self._fill, device=values.device)[:, None, None] / 255
            values = (
                functional.center_crop(values - fill, self._crop[::-1]) + fill
            )  # center_crop pads with zeros
        tensor: Tensor = functional.normalize(values, self.mean, self.std)
        if self.frames is None:
            return tensor
        return tensor.transpose(-4, -3)

    def notes_of_size(self, size: Size) -> dict[str, str]:
        """What a user may not expect of an image of a size (width, height), by topic."""
        elongation = max(size) / min(size)
        if self.fit != "whole" or elongation <= _MOST_ELONGATED:
            return {}
        words = f"one side is {elongation:,.0f} times as long as the other"
        return {
            "long": f"{words}, so it is shortened to {_MOST_ELONGATED} times: cut it into parts for finer maps"
        }

    @property
    def step(self) -> int:
        """Of ``"whole"``: sides differ by multiples of this many pixels, so that cells cover them evenly."""
        if self.stride:
            return self.stride
        side = min(self.resize or self.shape[-2:])
        exponent = int(math.log2(side / _CELLS))
        return min(_STRIDE, 1 << max(0, exponent))

    @property
    def _crop(self) -> Size | None:
        """Width and height of the center crop; None if nothing is cut off or padded."""
        if self.size is None or self.fit == "whole":
            return None
        return self.size[::-1]

    @property
    def _fill(self) -> tuple[int, ...]:
        """The color of padding."""
        if self.fit == "pad" and self.fill is None:
            return tuple(round(255 * value) for value in self.mean)
        gray = self.fill if self.fit == "pad" else 0
        return (gray or 0,) * len(self.mean)

    def _new_size(self, size: Size) -> Size:
        """The size (width, height) after resizing, with torchvision's rounding, and timm's for ``"pad"``."""
        if self.resize is None:
            return size
        side = self.resize[0]
        width, height = size
        shorter = min(size)
        longer = max(size)
        if self.fit == "whole":
            scale = side * max(1, self.tiles) / shorter
            if self.longest and not self.tiles:
                scale = min(scale, self.longest / longer)
            side_limit = _MOST_ELONGATED * side * max(1, self.tiles)
            steps = [round((min(length * scale, side_limit) - side) / self.step) for length in size]
            across, down = (side + count * self.step for count in steps)
            return across, down
        if len(self.resize) == 2 or self.fit == "squash":
            return self.resize[-1], side
        if self.fit == "pad":
            scale = longer / side
            return max(1, round(width / scale)), max(1, round(height / scale))
        resized = int(side * longer / shorter)
        return (side, resized) if width <= height else (resized, side)

    def _of_frame(self, image: Image.Image) -> NDArray[np.uint8]:
        """The crop of a resized frame.

        As torchvision's preset for video, this interpolates between neighboring pixels without antialiasing, and rounds
        to the nearest value, which Pillow does not for 8 bits. Only what survives the crop is computed.
        """
        assert self.size is not None
        region = self.place(image.size)
        bands = []
        for band in image.split():
            values = band.convert("F")
            crop = values.transform(
                self.size[::-1], Image.Transform.EXTENT, region, Image.Resampling.BILINEAR
            )
            bands.append(np.asarray(crop))
        return np.rint(np.stack(bands, axis=-1)).astype(np.uint8)


def _unscaled(channels: int) -> dict[str, Any]:
    """The options for so many channels whose values are not normalized."""
    return {"channels": channels, "mean": (0.0,) * channels, "std": (1.0,) * channels}


def _center_box(size: Size, crop: Size) -> Box:
    """The center crop of an image; beyond its edges where it is smaller."""
    left, top = map(_start, size, crop)
    return Box.from_xywh(left, top, *crop)


def _start(side: int, crop: int) -> int:
    """Where torchvision's ``center_crop`` starts, with its rounding; below 0 where it pads."""
    if side < crop:
        return -((crop - side) // 2)
    return round((side - crop) / 2)


def call_transform(function: Transform, image: Image.Image) -> FloatArray:
    """What a function makes of an image, (height, width, C).

    Raises:
        ConfigurationError: it does not return a tensor (C, height, width).
    """
    result = function(image)
    if getattr(result, "ndim", 0) != 3:
        shape = getattr(result, "shape", None)
        kind = f"a {type(result).__name__}" if shape is None else f"shape {tuple(shape)}"
        raise ConfigurationError(f"transform returns {kind}, but a tensor (C, height, width) is needed")
    return np.ascontiguousarray(np.moveaxis(np.asarray(result, np.float32), 0, -1))


@lru_cache(maxsize=64)
def measure_placement(function: Transform, size: Size) -> Box:
    """The rectangle of an image of a size (width, height) that a function resizes, crops or pads to its result.

    Ramps from black to white along each side tell where the result's pixels come from; it may be normalized.

    Raises:
        ConfigurationError: the pixels do not come from a rectangle, or from another one each time.
    """

    def apply(values: AnyArray | float) -> FloatArray:
        gray = np.broadcast_to(np.round(values), size[::-1]).astype(np.uint8)
        return call_transform(function, Image.fromarray(gray).convert("RGB"))

    black = apply(0.0)
    contrast = apply(255.0) - black
    is_image = np.abs(contrast) > np.abs(contrast).max() / 2  # what is the same in all is padding
    starts = []
    ends = []
    for axis, side in zip((1, 0), size, strict=True):
        steps = np.arange(side) / max(1, side - 1) * 255
        ramp = np.expand_dims(steps, 1 - axis)
        result = apply(ramp)
        is_stable = np.array_equal(result, apply(ramp))
        positions = np.nonzero(is_image)[axis] + 0.5
        sources = (result - black)[is_image] / contrast[is_image] * (side - 1) + 0.5
        slope = start = 0.0
        if len(np.unique(positions)) > 1:
            slope, start = np.polyfit(positions, sources, 1)
        deviations = np.abs(slope * positions + start - sources)
        if slope <= 0 or deviations.max() > _TOLERANCE * side or not is_stable:
            raise ConfigurationError(
                "transform does not always resize, crop and pad an image in the same way, "
                "so its maps have no place in it: pass the tensor that it makes, or another transform"
            )
        starts.append(float(start))
        ends.append(float(start + slope * black.shape[axis]))
    return Box(*starts, *ends)
