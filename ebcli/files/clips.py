"""Which frames of a video a network sees: consecutive clips at its own frame rate. Imports no numpy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from ebcli.errors import check_at_least, check_value

if TYPE_CHECKING:
    from ebcli.files.coordinates import Affine


@dataclass(frozen=True)
class ClipOptions:
    """Which part of each video is explained, and how by networks for images.

    Attributes:
        every: explain every N-th clip; of networks for images, every N-th frame. 1 for all.
        start: where the first clip starts, in seconds.
        duration: how many seconds are explained; None for the rest of the video.
        frames: a directory of numbered images is a video with so many frames per second; None for single images.
            Networks for video have a frame rate of their own.
        smooth: maps of frames are averaged over so many seconds before and after, with weights that fall to 0; 0 for
            none.

    Raises:
        ConfigurationError: a value is out of range.
    """

    every: int = 1
    start: float = 0.0
    duration: float | None = None
    frames: float | None = None
    smooth: float = 0.2

    def __post_init__(self) -> None:
        check_at_least(1, every=self.every)
        check_value("--start", self.start, lambda it: 0 <= it < inf, "at least 0 seconds")
        check_value("--duration", self.duration, lambda it: 0 < it < inf, "above 0 seconds")
        check_value("--frames", self.frames, lambda it: 0 < it <= 1000, "above 0 and at most 1000 per second")
        check_value("--smooth", self.smooth, lambda it: 0 <= it <= 10, "from 0 to 10 seconds")


class MappedFrame(NamedTuple):
    """A frame that has a map: its number, counted from the first one, the number of its clip, and its place there."""

    number: int
    clip: int
    place: int


@dataclass(frozen=True, kw_only=True)
class Clips:
    """The explained clips of a video, in frames at the network's frame rate, counted from the first one.

    Attributes:
        starts: the first frame of each clip, ascending. Clips overlap only where the last one ends with the video.
        frames: frames per clip; in a shorter video, the last frame is repeated.
        frame_rate: frames per second.
        total: the number of frames.
        start: the time of the first frame in the video, in seconds.
    """

    starts: tuple[int, ...]
    frames: int
    frame_rate: float
    total: int
    start: float = 0.0

    def time(self, frame: float) -> float:
        """The time of a frame in the video, in seconds."""
        return self.start + frame / self.frame_rate

    def title(self, frame: int) -> str:
        """Which frame it is, in words."""
        return f"{self.time(frame):.2f} s"

    def explained_frames(self) -> Iterator[MappedFrame]:
        """Each frame that has a map, once."""
        after = 0
        for clip, start in enumerate(self.starts):
            end = min(start + self.frames, self.total)
            for frame in range(max(start, after), end):
                yield MappedFrame(frame, clip, frame - start)
            after = end


class Plane(NamedTuple):
    """A plane through a volume.

    Attributes:
        name: such as ``"axial"``, or the number of an axis of the array.
        normal: the axis, of x, y and z, along which such planes follow each other.
        across, down: the axes that are drawn from left to right, and from top to bottom.
    """

    name: str
    normal: int
    across: int
    down: int


_AXES_OF_ARRAY = (Plane("axis 1", 2, 0, 1), Plane("axis 2", 1, 0, 2), Plane("axis 3", 0, 1, 2))


@dataclass(frozen=True, kw_only=True)
class Slices(Clips):
    """The slices of a volume, as the frames of one clip.

    Attributes:
        affine: where they lie in space, if that is known.
    """

    affine: Affine | None = field(default=None, compare=False)

    @property
    def spacing(self) -> tuple[float, ...]:
        """The distances of cells along x, y and z."""
        return self.affine.spacing if self.affine else (1.0, 1.0, 1.0)

    @property
    def codes(self) -> str:
        """Where x, y and z lead, as in ``Affine.codes``."""
        return self.affine.codes if self.affine else ""

    @property
    def flips(self) -> tuple[bool, ...]:
        """Whether x, y and z are drawn in reverse: the patient's right, front and top are on the left and above."""
        return tuple(code in "RAS" for code in self.codes or "LPI")

    @property
    def planes(self) -> tuple[Plane, ...]:
        """The axial, the coronal and the sagittal plane, as radiologists see them; or those of the array's axes."""
        if not self.codes:
            return _AXES_OF_ARRAY
        right, front, top = (
            next(axis for axis, code in enumerate(self.codes) if code in pair) for pair in ("LR", "AP", "SI")
        )
        return (
            Plane("axial", top, right, front),
            Plane("coronal", front, right, top),
            Plane("sagittal", right, front, top),
        )

    def ends(self, axis: int) -> str:
        """The letters of both ends of an axis, in the order in which it is drawn; empty if they are unknown."""
        if not self.codes:
            return ""
        return next(pair for pair in ("RL", "AP", "SI") if self.codes[axis] in pair)

    def title(self, frame: int) -> str:
        (plane,) = (plane for plane in self.planes if plane.normal == 2)
        return f"{plane.name}, slice {frame + 1} of {self.total}"

    def upright(self, values: Any) -> Any:
        """An array (..., H, W) with rows and columns as they are drawn."""
        x, y, _ = (-1 if is_flipped else 1 for is_flipped in self.flips)
        return values[..., ::y, ::x]


def clip_starts(total: int, frames: int, step: int = 1) -> tuple[int, ...]:
    """Where the clips of a video start.

    Clips follow each other. If all are explained, one more ends with the video, unless the others do. Of a video
    shorter than a clip, there is one.

    Args:
        total: the number of frames.
        frames: frames per clip.
        step: only every N-th clip.
    """
    starts = range(0, max(1, total - frames + 1), frames * step)
    if step == 1 and total > frames and total % frames:
        return (*starts, total - frames)
    return tuple(starts)
