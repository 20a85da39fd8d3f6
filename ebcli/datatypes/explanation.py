"""Boxes in images, and the maps of one image as plain arrays, which worker processes receive. Imports no NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ebcli.datatypes.arrays import DoubleArray, FloatArray

Size = tuple[int, int]  # width and height, in pixels
Interval = tuple[float, float]
JsonObject = dict[str, Any]


class Box(NamedTuple):
    """A rectangle in an image, in pixels. ``(0, 0)`` is the top left *corner* of the top left pixel.

    What a network sees may reach beyond the image, where a crop was larger than the image and had to be padded.
    """

    left: float
    top: float
    right: float
    bottom: float

    @classmethod
    def from_xywh(cls, left: float, top: float, width: float, height: float) -> Box:
        """The box that options and files give by its top left corner and its size."""
        return cls(left, top, left + width, top + height)

    @property
    def xywh(self) -> tuple[float, float, float, float]:
        """Left, top, width and height as options and files have them, to hundredths of a pixel."""
        left, top, right, bottom = self
        return round(left, 2), round(top, 2), round(right - left, 2), round(bottom - top, 2)

    @property
    def size(self) -> tuple[float, float]:
        """The width and height."""
        return self.right - self.left, self.bottom - self.top

    @property
    def sides(self) -> tuple[Interval, Interval]:
        """Where it begins and ends along x, and along y."""
        return (self.left, self.right), (self.top, self.bottom)

    @property
    def outline(self) -> DoubleArray:
        """The closed outline, (5, 2)."""
        import numpy as np  # which the command's help need not wait for

        left, top, right, bottom = self
        return np.array([[left, top], [right, top], [right, bottom], [left, bottom], [left, top]], np.float64)

    @property
    def area(self) -> float:
        """In square pixels; 0 if it is empty."""
        width, height = self.size
        return max(width, 0.0) * max(height, 0.0)

    def rescale(self, old_size: tuple[float, float], new_size: tuple[float, float]) -> Box:
        """The same rectangle after the image was resized from one size (width, height) to another."""
        width, height = old_size
        x, y = new_size
        left, top, right, bottom = self
        # multiplied first, as edges of the image stay exact so
        return Box(left * x / width, top * y / height, right * x / width, bottom * y / height)

    def shift(self, x: float, y: float) -> Box:
        """The same rectangle, further to the right and further down."""
        left, top, right, bottom = self
        return Box(left + x, top + y, right + x, bottom + y)

    def intersection(self, other: Box) -> Box:
        """The part that lies in another box; its area is 0 if there is none."""
        left, top, *_ = map(max, self, other)
        *_, right, bottom = map(min, self, other)
        return Box(left, top, right, bottom)

    def overlap(self, other: Box) -> float:
        """The area of the intersection divided by that of the union, 0 to 1."""
        common = self.intersection(other).area
        return common / (self.area + other.area - common)

    def share_of(self, size: Size) -> float:
        """The share of an image (width, height) that lies in the rectangle."""
        image = Box(0, 0, *size)
        return self.intersection(image).area / image.area


HARDLY_ANY = "hardly any"  # evidence

# From where on the evidence is weak, and clear; see docs/evidence.md
OF_NOISE = 1.5, 3.0  # multiples of the median strength of maps of noise
_TOO_STRONG = 0.2  # of the largest strength: where noise has more, right maps are often hardly stronger
_OF_WORD = 0.14, 0.35  # two and five times the largest share of a word's evidence that a blank picture had
_FAINT = 0.3  # brightness
_FAINTEST = 0.2
_COLUMNS_IN_WORDS = 3


def strength_words(strength: float | None, times_noise: float | None, evidence: str | None) -> list[str]:
    """The strength and the evidence of a map in words, as far as they are known, with the score if that decides.

    Nothing if noise is known and the evidence is not judged: a multiple of strong noise would be taken for a judgment.
    """
    if strength is None or (times_noise is not None and evidence is None):
        return []
    words = [f"strength {strength:.3f}"]
    if times_noise is not None:
        words = [f"strength {times_noise:.{int(times_noise < 10)}f}× noise"]
    if evidence == HARDLY_ANY and (times_noise or 0) >= OF_NOISE[0]:
        words.append(f"{evidence} evidence: score below chance")
    elif evidence:
        words.append(f"{evidence} evidence")
    return words


VALUE = "value"  # the name of a network's only output, unless it has another one


def score_words(score: float, is_value: bool) -> str:
    """A score, or a value on a scale of its own, in words."""
    if is_value:
        return f"value {score:.4g}"
    return f"score {score:.3f}"


def title_of(label: str, score: float, is_value: bool) -> str:
    """A class or an output, and its score or value."""
    words = score_words(score, is_value)
    if is_value and label == VALUE:
        return words
    return f"{label}, {words}"


def input_words(shares: Mapping[str, float], columns: Mapping[str, Mapping[str, float]]) -> list[str]:
    """The shares of a network's inputs in the evidence, and the columns of its tables that have most, in words."""
    if not shares:
        return []
    words = [", ".join(f"{name} {share:.0%}" for name, share in shares.items()) + " of the evidence"]
    for name, values in columns.items():
        leading = [f"{column} {value:.3f}" for column, value in [*values.items()][:_COLUMNS_IN_WORDS]]
        if len(values) > _COLUMNS_IN_WORDS:
            leading.append("...")
        words.append(f"{name}: {', '.join(leading)}")
    return words


class WindowScore(NamedTuple):
    """A window of an image, and the score of a class in it."""

    box: Box
    score: float


@dataclass(frozen=True, eq=False)
class Subject:
    """What a map is about: a class, a detection, a segment, a value.

    Attributes:
        index: the class.
        name: the class's name; None if it is unknown.
        score: the class's or detection's probability; a segment's share of the pixels, or its mean probability if
            ``--where`` asks for it; a network's output if it is a value.
        is_value: the score is a value on a scale of its own.
        where: where in the class's output (...) its probability starts: an index, empty for a single number; a mask; or
            weights.
        box: a detection's, in the image.
        outlines: the closed polygons (N, 2) around the object, in pixels of the image.
        is_unlikely: the score is below 1%, and below that of a class chosen at random.
        span: of a word, where in the answer it begins and ends.
        position: of a word, its number in the answer, from 1.
        windows: the class's scores in windows of the image; empty if they were not asked.
    """

    index: int
    name: str | None
    score: float
    _: KW_ONLY
    where: tuple[int, ...] | NDArray[np.bool_] | FloatArray = ()
    box: Box | None = None
    outlines: Sequence[DoubleArray] = ()
    is_unlikely: bool = False
    is_value: bool = False
    span: tuple[int, int] | None = None
    position: int | None = None
    windows: tuple[WindowScore, ...] = ()

    @property
    def window_score(self) -> float | None:
        """The highest score in a window; None if they were not asked."""
        return max((window.score for window in self.windows), default=None)

    @property
    def label(self) -> str:
        """The name of the class, or its index if the name is unknown."""
        return self.name or f"class {self.index}"

    @property
    def title(self) -> str:
        """The class and the score in words."""
        return title_of(self.label, self.score, self.is_value)


def _short(score: float) -> str:
    if score >= 0.01 or score == 0:
        return f"{score:.2f}"
    return f"{score:.1g}"


@dataclass(frozen=True, kw_only=True)
class Sufficiency:
    """How small a part of an image keeps half of a score while the rest is blurred.

    Attributes:
        part: the smallest share of the image, 0 to 1, if its pixels are kept in the order of the map; 1 if no smaller
            part keeps half of the score.
        shuffled, center, gradient: likewise in the order of the map with its cells shuffled, of a blob at the center,
            and of the gradient at the pixels.
        score: the score of the whole image.
        without: the score if ``part`` is blurred.
        blurred: the score if all of the image is blurred.
    """

    part: float
    shuffled: float
    center: float
    gradient: float
    score: float
    without: float
    blurred: float

    @property
    def suffices(self) -> bool:
        """Whether the map finds a smaller part than random order and the center do, and blur alone loses the score."""
        return self.part < min(1.0, self.shuffled, self.center) and not self._blur_keeps

    @property
    def _blur_keeps(self) -> bool:
        return self.blurred >= self.score / 2

    @property
    def obstacle(self) -> str:
        """Why it is not shown that the part suffices, without numbers; empty if it is."""
        if self._blur_keeps:
            return "half of the score remains if all of the image is blurred"
        if self.part == 1:
            return "no part of the image keeps half of the score"
        if not self.suffices:
            return "as small a part in random order, or at the center, keeps half of the score"
        return ""

    @property
    def words(self) -> str:
        """The result in words."""
        score, without, blurred = map(_short, (self.score, self.without, self.blurred))
        if self._blur_keeps:
            reason = f"the score is still {blurred} of {score} if all of the image is blurred"
            return f"sufficiency not shown: {reason}"
        if self.part == 1:
            return f"sufficiency not shown: no part of the image keeps half of the score {score}"
        alternatives = f"a blob at the center needs {self.center:.0%}, random order {self.shuffled:.0%}"
        if not self.suffices:
            return f"sufficiency not shown: the map needs {self.part:.0%} of the image; {alternatives}"
        change = f"is {without} instead of {score}"
        if self.without < self.score:
            change = f"falls from {score} to {without}"
        return f"{self.part:.0%} of the image suffices; {alternatives}; without that part, the score {change}"

    @property
    def record_fields(self) -> JsonObject:
        """The result as records have it."""
        return {**asdict(self), "suffices": self.suffices, "words": self.words}

    @classmethod
    def from_record(cls, values: JsonObject) -> Sufficiency:
        """That of such fields."""
        return cls(**{field.name: values[field.name] for field in fields(cls)})


class PictureMap(NamedTuple):
    """The map of another picture that the network got.

    Attributes:
        name: the name of the input.
        values: (H, W), signed, in the units of the map of the first picture.
        pixels: (H, W, 3), 8 bits.
        share: the input's share of the evidence, 0 to 1.
    """

    name: str
    values: FloatArray
    pixels: NDArray[np.uint8]
    share: float


@dataclass(frozen=True, eq=False, kw_only=True)
class Map:
    """The map of a subject at a layer.

    Attributes:
        subject: what it is about.
        layer: the layer's name; ``"input"`` for the pixels.
        values: (h, w), signed; of a video (t, h, w), all clips one after another.
        mass: the share of probability that reached the layer, its class tokens included; None for contrastive maps,
            unless lost mass was tracked.
        placement: the rectangle of the image that it covers.
        lost_mass: the probability that was lost at each operation above the layer; None if it was not tracked.
        relevance: (...), signed; None unless the arrays are written.
        method: ``"contrastive"`` or ``"marginal"``.
        method_maps: the maps (h, w) of other methods that are shown beside this one, by name.
        noise: the median strength of maps of noise at that layer; None if it is unknown.
        against: the names of the classes that it is contrasted with; empty for the dual.
        is_two_sided: also draw its negative values, which speak for ``against``, whatever the style.
        stride: of how many cells, in each direction, the network reads only the first one.
        sufficiency: how small a part of the image keeps half of the score; None if it was not measured.
        share: of a word in an answer, the share of its evidence that is in the picture, which then tells how much the
            map rests on; None for other subjects.
        unplaced: of a word, the share of its evidence that is in the picture, but at no known place, such as in class
            tokens; None for other subjects.
        channels: at the input of a network with more than three, each channel's share of the positive relevance; else
            empty.
        head: the output of the network that it explains; None of the only one.
        inputs: of a network with several inputs, the share of the evidence that each of them has, by name: its marginal
            mass, step by step. Their sum is at most 1: the rest ended at biases. Whole numbers have none.
        columns: the evidence of each column of its tables, by the names of the input and the column, the largest first:
            what the column contributes to a map of this method, so it is signed if the map is contrastive.
        pictures: the maps of its other pictures.
    """

    subject: Subject
    layer: str
    values: FloatArray
    mass: float | None
    placement: Box
    lost_mass: dict[str, float] | None = None
    relevance: FloatArray | None = None
    method: str = "contrastive"
    method_maps: Mapping[str, FloatArray] = field(default_factory=dict)
    noise: float | None = None
    stride: int = 1
    against: str = ""
    is_two_sided: bool = False
    sufficiency: Sufficiency | None = None
    share: float | None = None
    unplaced: float | None = None
    channels: tuple[float, ...] = ()
    head: str | None = None
    inputs: Mapping[str, float] = field(default_factory=dict)
    columns: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    pictures: tuple[PictureMap, ...] = ()

    @property
    def title(self) -> str:
        """The subject in words, with its score; of a word, with the share of its evidence that is in the picture."""
        if self.is_two_sided:
            return f"{self.subject.title}, against {self.against}"
        if self.share is not None:
            return f"{self.subject.name}: {self.share:.2f} from the picture"
        return self.subject.title

    @property
    def strength(self) -> float | None:
        """The positive part of a contrastive map, 0 to 1; None for other maps.

        It is the share of the class's probability that its dual, or the class contrasted with, has elsewhere. Several
        pictures are counted together.
        """
        if self.method != "contrastive":
            return None
        values = [self.values, *(picture.values for picture in self.pictures)]
        return float(sum(map_.clip(0).sum() for map_ in values))

    @property
    def times_noise(self) -> float | None:
        """The strength as a multiple of ``noise``, which compares maps of any layers and networks; None if unknown."""
        strength = self.strength
        if not self.noise or strength is None:
            return None
        return strength / self.noise

    @property
    def evidence(self) -> str | None:
        """How much the map rests on, in words; None if that is unknown."""
        score, (weak, clear) = self._evidence_score(self.strength)
        if score is None:
            return None
        if score < weak or self.subject.is_unlikely:
            return HARDLY_ANY
        if score < clear:
            return "weak"
        return "clear"

    @property
    def evidence_words(self) -> list[str]:
        """The strength and the evidence in words, as far as they are known."""
        return strength_words(self.strength, self.times_noise, self.evidence)

    @property
    def input_words(self) -> list[str]:
        """The shares of several inputs, and the columns with the most evidence, in words; empty for one input."""
        return input_words(self.inputs, self.columns)

    def brightness(self, signed: bool) -> float:
        """How brightly the map is drawn, 0 to 1: less brightly if what is drawn rests on little evidence."""
        strength = float(abs(self.values).sum()) / 2 if signed else self.strength
        score, (_, clear) = self._evidence_score(strength)
        if score is None:
            return 1.0
        brightness = min(1.0, max(_FAINTEST, score / clear))
        if self.subject.is_unlikely and not signed:
            return min(_FAINT, brightness)
        return brightness

    @property
    def is_noise(self) -> bool:
        """Whether the map is known to be about as strong as a map of noise, whatever the score."""
        score, (weak, _) = self._evidence_score(self.strength)
        return score is not None and score < weak

    def _evidence_score(self, strength: float | None) -> tuple[float | None, Interval]:
        """What tells how much the map rests on, and from where on that is weak, and clear."""
        if self.share is not None:
            return self.share, _OF_WORD
        if strength is None or not self.noise or self.noise > _TOO_STRONG:
            return None, OF_NOISE
        return strength / self.noise, OF_NOISE

    @property
    def display_values(self) -> FloatArray:
        """The values, each spread over the block of cells that it was sampled from."""
        import numpy as np

        if self.stride == 1:
            return self.values
        height, width = self.values.shape[-2:]
        spread = np.zeros_like(self.values)
        for row, column in np.ndindex(min(self.stride, height), min(self.stride, width)):
            spread[..., row:, column:] += self.values[..., : height - row, : width - column] / self.stride**2
        return spread

    @property
    def peak(self) -> float:
        """The strongest cell as it is drawn, in units of a uniform map."""
        return float(self.display_values.max()) * self.values.size


AnswerParts = list[tuple[str, Map | None]]


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """The maps of one image.

    Attributes:
        maps: in the order of results and records: subject by subject, and layer by layer.
        seconds: this image's share of the time that its batch took.
        label, predicted: its true class and the most likely one, if the true one is known.
        tiles: the number of tiles that were explained and joined; 0 if it was explained at once.
        question, answer: what a vision-language model was asked about the image, and what it said.
        other_inputs: a hash of what a network of several inputs got beside the image; empty for one input.
    """

    maps: Sequence[Map]
    seconds: float
    label: int | None = None
    predicted: int | None = None
    tiles: int = 0
    question: str = ""
    answer: str | None = None
    other_inputs: str = ""

    @property
    def parts(self) -> AnswerParts:
        """The answer in parts, each with its map if it is a word that is explained."""
        parts: AnswerParts = []
        end = 0
        text = self.answer or ""
        for map_ in self.maps:
            first, last = map_.subject.span or (end, end)
            parts += [(text[end:first], None), (text[first:last], map_)]
            end = last
        return [*parts, (text[end:], None)]

    @property
    def subjects(self) -> list[Subject]:
        """Each subject once."""
        return list(dict.fromkeys(map_.subject for map_ in self.maps))

    @property
    def by_layer(self) -> dict[str, list[Map]]:
        """The maps of all subjects, layer by layer."""
        layers: dict[str, list[Map]] = {}
        for map_ in self.maps:
            layers.setdefault(map_.layer, []).append(map_)
        return layers
