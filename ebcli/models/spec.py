"""Which network to load and how to feed it. Imports no torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebcli.errors import ConfigurationError
from ebcli.models.keywords import BUNDLED, CROP, DEFAULT, FITS, PAD, SQUASH, WHOLE

if TYPE_CHECKING:
    from ebcli.datatypes.input_spec import InputSpec

Channels = float | Sequence[float]
Classes = tuple[str, ...]  # texts or pictures

_LARGEST_SIDE = 1 << 14  # pixels; more than any photo that is decoded by default
_MOST_TILES = 16  # across the shorter side; the work grows with the square
_TO_RAS = str.maketrans("LPI", "RAS")
_LARGEST = {"resize": _LARGEST_SIDE, "crop": _LARGEST_SIDE, "depth": _LARGEST_SIDE, "tiles": _MOST_TILES}


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """Settings that replace the settings of a preprocessing; None keeps a setting.

    Attributes:
        resize: length of the shorter side after resizing, in pixels.
        crop: side of the center crop in pixels, the network's input size. None for the model's own, and for ``resize``
            if ``fit`` is ``"squash"`` or ``"pad"``.
        mean, std: normalization of pixels from 0 to 1, (pixel - mean) / std; one number, or one for each channel.
        fit: ``"crop"`` resizes the shorter side and cuts off the ends of the longer one, ``"squash"`` resizes both
            sides regardless of the aspect ratio, ``"pad"`` resizes the longer side and pads the shorter one with the
            mean color. With another fit than the model's and without ``resize``, the network sees the whole image.
            ``"whole"`` resizes the shorter side to ``resize``, or to the side of the model's crop, and keeps the aspect
            ratio, with the longer side rounded to 32 pixels. Networks that only take images of their own size get them
            padded. Videos are cropped nevertheless.
        tiles: the number of tiles across the shorter side: the image becomes larger than the network's input, which
            sees it in overlapping tiles. None for the whole image at once.
        depth: the number of slices to which volumes are resized; each slice is resized to ``crop``.
        orientation: where x, y and z of the volumes lead that the network gets as (z, y, x), in nibabel's codes such as
            ``"RAS"`` for right, anterior and superior; None for the axes of the file.
        channels: the channels of an array that the network gets, numbered from 1, in this order; None for all.
        bands: one channel of an array that pictures show in gray, or three as red, green and blue; None for the first.
        range: the two values of an array that become 0 and 1, before ``mean`` and ``std``.

    Raises:
        ConfigurationError: a value is out of its range.

    Examples:
        >>> import ebcli
        >>> small = ebcli.Preprocessing(resize=72, crop=64, mean=0.5)
        >>> loaded = ebcli.load_model("resnet18", weights="none", preprocessing=small)
        >>> loaded.transforms.size, loaded.transforms.std
        ((64, 64), (0.229, 0.224, 0.225))
    """

    resize: int | None = None
    crop: int | None = None
    mean: Channels | None = None
    std: Channels | None = None
    fit: str | None = None
    tiles: int | None = None
    depth: int | None = None
    orientation: str | None = None
    channels: Sequence[int] | None = None
    bands: Sequence[int] | None = None
    range: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if self.fit is not None and self.fit not in FITS:
            raise ConfigurationError(f"unknown fit {self.fit!r}: choose {', '.join(FITS)}")
        if self.tiles is not None and self.fit not in (None, WHOLE):
            raise ConfigurationError(f"tiles cover the whole image: drop --fit {self.fit}, or --tiles")
        for name, maximum in _LARGEST.items():
            count = getattr(self, name)
            if count is not None and not 1 <= count <= maximum:
                raise ConfigurationError(f"{name} is {count}, but it must be between 1 and {maximum}")
        self._set_orientation()
        self._set_numbers("mean", "a number, or one for each channel", -inf)
        self._set_numbers("std", "a number above 0, or one for each channel", 0.0)
        self._set_channels("channels", "channels")
        self._set_channels("bands", "one channel or three", (1, 3))
        self._set_numbers("range", "two numbers, the lower one first", -inf)

    def _set_numbers(self, name: str, requirement: str, low: float) -> None:
        value = getattr(self, name)
        if value is None:
            return
        numbers = [value] if isinstance(value, (int, float)) else value
        values = tuple(map(float, numbers))
        is_right = values and all(low < number < inf for number in values)
        if name == "range":
            is_right = is_right and len(values) == 2 and values[0] < values[1]
        elif len({*values}) == 1:  # one number and three equal ones compare equal
            values = values[:1]
        if not is_right:
            raise ConfigurationError(f"{name} is {value}, but must be {requirement}")
        object.__setattr__(self, name, values)

    def _set_orientation(self) -> None:
        if self.orientation is None:
            return
        codes = self.orientation.upper()
        if sorted(codes.translate(_TO_RAS)) != ["A", "R", "S"]:
            requirement = "a letter of L or R, one of A or P, and one of S or I, such as RAS"
            raise ConfigurationError(f"orientation is {self.orientation}, but must be {requirement}")
        object.__setattr__(self, "orientation", codes)

    def _set_channels(self, name: str, noun: str, counts: Sequence[int] = ()) -> None:
        numbers = getattr(self, name)
        if numbers is None:
            return
        if not numbers or min(numbers) < 1 or (counts and len(numbers) not in counts):
            raise ConfigurationError(f"{name} is {numbers}, but must be {noun}, numbered from 1")
        object.__setattr__(self, name, tuple(map(int, numbers)))

    def apply(self, spec: InputSpec) -> InputSpec:
        """The same preprocessing with these settings.

        Raises:
            ConfigurationError: the crop is larger than the resized image, or the network sees whole images.
        """
        if spec.function is not None and replace(self, fit=None) == Preprocessing():
            return spec
        fit = self._fit_for(spec)
        spec = self._resize(replace(spec, fit=fit), keeps_fit=fit in (CROP, spec.fit))
        changes: dict[str, Any] = {
            "tiles": self.tiles or 0,
            "depth": self.depth or spec.depth,
            "orientation": self.orientation or spec.orientation,
            "mean": self._norm("mean", spec),
            "std": self._norm("std", spec),
            "range": self.range or spec.range,
            "selected": self.channels or spec.selected,
            "bands": self.bands or spec.bands,
        }
        return replace(spec, **changes)

    def _fit_for(self, spec: InputSpec) -> str:
        """How images are fitted into the input. Raises ConfigurationError if the network has no use for a setting."""
        is_photo = spec.size is not None and spec.axes == "HW"
        if self.tiles is not None:
            if not is_photo:
                raise ConfigurationError("tiles are for networks that see photos of one size: drop --tiles")
            return WHOLE
        if self.fit is None:
            return spec.fit
        if is_photo:
            return self.fit
        if self.fit in (WHOLE, spec.fit):
            return spec.fit
        problem = "clips are always cropped at the center"
        if spec.depth is not None:
            problem = f"{spec.network} gets whole volumes, never cropped or padded"
        elif spec.size is None:
            problem = "the network sees whole images"
        raise ConfigurationError(f"{problem}: drop --fit")

    def _resize(self, spec: InputSpec, keeps_fit: bool) -> InputSpec:
        takes_volumes = spec.depth is not None
        for name in ("depth", "orientation"):
            if getattr(self, name) is not None and not takes_volumes:
                raise ConfigurationError(f"{spec.network} gets no volumes: drop {name}")
        if self.crop is not None:
            if spec.size is None and not takes_volumes:
                raise ConfigurationError("the network sees whole images: drop --crop")
            spec = replace(spec, size=(self.crop, self.crop))
        if self.resize is not None:
            spec = replace(spec, resize=(self.resize,), longest=None)
            if self.crop is None and self.fit in (SQUASH, PAD) and spec.size is not None:
                spec = replace(spec, size=(self.resize, self.resize))
        elif spec.size is not None and (takes_volumes or not keeps_fit):
            spec = replace(spec, resize=spec.size[:1])
        if self.resize or self.crop:
            self._check_crop(spec)
        return spec

    def _check_crop(self, spec: InputSpec) -> None:
        if spec.fit == WHOLE or spec.size is None or spec.resize is None:
            return
        side = spec.size[0]
        shorter = min(spec.resize)
        if side > shorter:
            problem = f"the crop of {side} pixels is larger than the resized image of {shorter}"
            advice = "set --resize, too"
            if self.resize is not None:
                advice = f"set --crop {shorter}, too" if self.crop is None else "crop less, or resize to more"
            raise ConfigurationError(f"{problem}: {advice}")

    def _norm(self, name: str, spec: InputSpec) -> tuple[float, ...]:
        """The mean or the standard deviation of each channel."""
        values = tuple(getattr(self, name) or getattr(spec, name))
        if len(values) == 1:
            return values * spec.channels
        count = len(values)
        if count != spec.channels:
            raise ConfigurationError(
                f"--{name} has {count} values, but {spec.network} takes {spec.channels} channels"
            )
        return values

    def apply_fixed_size(self, spec: InputSpec) -> InputSpec:
        """The same preprocessing for networks that do not take images of any size.

        In place of ``"whole"``, images are squashed or padded as by the network's own preprocessing, or padded if it
        crops them, or keeps all of them.
        """
        fit = PAD if spec.fit in (CROP, WHOLE) else spec.fit
        return replace(self, fit=fit).apply(spec)


def as_classes(targets: Sequence[str], against: Sequence[str]) -> tuple[Classes, ...]:
    """Classes or pictures as classes: all of them, each once; and the indices of those to explain and to contrast with.

    Raises:
        ConfigurationError: one is to be both.
    """
    common = {*targets} & {*against}
    if common:
        problem = f"{min(common)!r} is explained, so it cannot be contrasted with"
        raise ConfigurationError(f"{problem}: change --against")
    classes = tuple(dict.fromkeys((*targets, *against)))
    indices = {text: str(index) for index, text in enumerate(classes)}
    return classes, tuple(map(indices.__getitem__, targets)), tuple(map(indices.__getitem__, against))


@dataclass(frozen=True)
class ModelSpec:
    """The arguments of ``load_model`` except the device, checked before torch is imported.

    Attributes:
        name, weights: see ``load_model``.
        class_names: file with one class name per output, or texts to compare images with; None for the model's own
            names.
        preprocessing: settings that replace the model's own preprocessing.
        scores: how logits become scores; None for the model's own way.
        like: pictures to compare images with.
        head: the head that is explained, by name or position; None for the only or the obvious one.

    Raises:
        ConfigurationError: the file does not exist.
    """

    name: str = BUNDLED
    _: KW_ONLY
    weights: str = DEFAULT
    class_names: Path | Classes | None = None
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    scores: str | None = None
    like: tuple[Path, ...] = ()
    head: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.class_names, Path) and not os.path.isfile(self.class_names):
            raise ConfigurationError(f"the file of class names '{self.class_names}' does not exist")

    @property
    def descriptions(self) -> Classes:
        """The texts or pictures that are the classes; empty if the model has classes of its own."""
        if isinstance(self.class_names, tuple) and not self.like:
            return self.class_names
        return tuple(map(str, self.like))
