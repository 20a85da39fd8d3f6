"""Which network to load and how to feed it. Imports no torch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebcli.errors import ConfigurationError
from ebcli.models.keywords import BUNDLED, CROP, DEFAULT, FITS, PAD, WHOLE

if TYPE_CHECKING:
    from ebcli.datatypes.input_spec import InputSpec

Channels = float | Sequence[float]

_LARGEST_SIDE = 1 << 14  # pixels; more than any photo that is decoded by default
_MOST_TILES = 16  # across the shorter side; the work grows with the square


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """Settings that replace the settings of a preprocessing; None keeps a setting.

    Attributes:
        resize: length of the shorter side after resizing, in pixels.
        crop: side of the center crop in pixels, the network's input size.
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
    channels: Sequence[int] | None = None
    bands: Sequence[int] | None = None
    range: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if self.fit is not None and self.fit not in FITS:
            raise ConfigurationError(f"unknown fit {self.fit!r}: choose {', '.join(FITS)}")
        if self.tiles is not None and self.fit not in (None, WHOLE):
            raise ConfigurationError(f"tiles cover the whole image: drop --fit {self.fit}, or --tiles")
        for name in ("resize", "crop", "depth", "tiles"):
            count, maximum = getattr(self, name), _MOST_TILES if name == "tiles" else _LARGEST_SIDE
            if count is not None and not 1 <= count <= maximum:
                raise ConfigurationError(f"{name} is {count}, but it must be between 1 and {maximum}")
        for name, low in (("mean", -inf), ("std", 0.0)):
            value = getattr(self, name)
            if value is None:
                continue
            values = (float(value),) if isinstance(value, (int, float)) else tuple(map(float, value))
            if not values or not all(low < number < inf for number in values):
                noun = "a number above 0" if name == "std" else "a number"
                raise ConfigurationError(f"{name} is {value}, but must be {noun}, or one for each channel")
            # one number and three equal ones compare equal
            object.__setattr__(self, name, values[:1] if len({*values}) == 1 else values)

        self._check_channels()

    def _check_channels(self) -> None:
        for name in ("channels", "bands"):
            numbers = getattr(self, name)
            if numbers is None:
                continue
            if not numbers or min(numbers) < 1 or (name == "bands" and len(numbers) not in (1, 3)):
                noun = "one channel or three" if name == "bands" else "channels"
                raise ConfigurationError(f"{name} is {numbers}, but must be {noun}, numbered from 1")
            object.__setattr__(self, name, tuple(map(int, numbers)))
        if self.range is not None:
            if len(self.range) != 2 or not -inf < self.range[0] < self.range[1] < inf:
                raise ConfigurationError(f"range is {self.range}, but must be two numbers, the lower one first")
            object.__setattr__(self, "range", tuple(map(float, self.range)))

    def apply(self, spec: InputSpec) -> InputSpec:
        """The same preprocessing with these settings.

        Raises:
            ConfigurationError: the crop is larger than the resized image, or the network sees whole images.
        """
        if spec.function is not None and replace(self, fit=None) == Preprocessing():
            return spec
        if self.tiles is not None and (spec.size is None or spec.axes != "HW"):
            raise ConfigurationError("tiles are for networks that see photos of one size: drop --tiles")
        fit = self.fit or (spec.fit if self.tiles is None else WHOLE)
        if fit == WHOLE and (spec.size is None or spec.axes != "HW"):
            fit = spec.fit
        elif spec.depth is not None and self.fit is not None:
            raise ConfigurationError(f"{spec.network} gets whole volumes: drop --fit")
        elif spec.size is None and self.fit is not None:
            raise ConfigurationError("the network sees whole images: drop --fit")
        elif spec.frames is not None and self.fit is not None:
            raise ConfigurationError("clips are always cropped at the center: drop --fit")
        if spec.depth is None and self.depth is not None:
            raise ConfigurationError(f"{spec.network} gets no volumes: drop the depth")
        if spec.size is None and spec.depth is None and self.crop is not None:
            raise ConfigurationError("the network sees whole images: drop --crop")
        size = spec.size if self.crop is None else (self.crop, self.crop)
        resize = spec.resize if self.resize is None else (self.resize,)
        if size is not None and self.resize is None and (fit not in (CROP, spec.fit) or spec.depth is not None):
            resize = size[:1]
        is_set = bool(self.resize or self.crop) and fit != WHOLE
        if is_set and size is not None and resize is not None and size[0] > min(resize):
            raise ConfigurationError(
                f"the crop of {size[0]} pixels is larger than the resized image of {min(resize)}: set --resize, too"
            )
        changes: dict[str, Any] = {"depth": self.depth or spec.depth, "range": self.range or spec.range}
        changes |= {"selected": self.channels or spec.selected, "bands": self.bands or spec.bands}
        for name in ("mean", "std"):
            values = getattr(self, name) or getattr(spec, name)
            if len(values) not in (1, spec.channels):
                problem = f"--{name} has {len(values)} values"
                raise ConfigurationError(f"{problem}, but {spec.network} takes {spec.channels} channels")
            changes[name] = tuple(values) * (spec.channels if len(values) == 1 else 1)
        longest = spec.longest if self.resize is None else None
        return replace(spec, size=size, resize=resize, fit=fit, tiles=self.tiles or 0, longest=longest, **changes)

    def apply_fixed_size(self, spec: InputSpec) -> InputSpec:
        """The same preprocessing for networks that do not take images of any size.

        In place of ``"whole"``, images are squashed or padded as by the network's own preprocessing, or padded if it
        crops them.
        """
        return replace(self, fit=PAD if spec.fit == CROP else spec.fit).apply(spec)


def as_classes(targets: Sequence[str], against: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Texts or pictures as classes: all of them, each once; and the indices of those to explain and to contrast with.

    Raises:
        ConfigurationError: one is to be both.
    """
    if common := {*targets} & {*against}:
        raise ConfigurationError(f"{min(common)!r} is explained, so it cannot be contrasted with: change --against")
    classes = list(dict.fromkeys((*targets, *against)))
    return tuple(classes), *(tuple(str(classes.index(text)) for text in names) for names in (targets, against))


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

    Raises:
        ConfigurationError: the file does not exist.
    """

    name: str = BUNDLED
    _: KW_ONLY
    weights: str = DEFAULT
    class_names: Path | tuple[str, ...] | None = None
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    scores: str | None = None
    like: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.class_names, Path) and not os.path.isfile(self.class_names):
            raise ConfigurationError(f"the file of class names '{self.class_names}' does not exist")

    @property
    def descriptions(self) -> tuple[str, ...]:
        """The texts or pictures that are the classes; empty if the model has classes of its own."""
        if self.like:
            return tuple(map(str, self.like))
        return self.class_names if isinstance(self.class_names, tuple) else ()
