"""What a run is asked to do, in parts that check themselves; the command's options check choices among words.

Imports neither torch nor Click.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from ebcli.drawing.style import UNSIGNED_STYLES, DrawingStyle
from ebcli.errors import ConfigurationError, check_at_least
from ebcli.files.frame_ranges import ClipOptions
from ebcli.files.naming import AUTO, FIGURE_FORMATS
from ebcli.files.remote import RemoteOptions
from ebcli.models.keywords import WHOLE
from ebcli.models.preprocessing import Preprocessing
from ebcli.models.sources import takes_texts
from ebcli.models.spec import ModelSpec, as_classes
from ebcli.nouns.box import Box

T = TypeVar("T")

FORMATS = (AUTO, "png", "jpg", "webp", *FIGURE_FORMATS)
DTYPES = ("float32", "bfloat16")
SCALES = IMAGE, RUN = "image", "run"
ANNOTATIONS = BOXES, MASKS = "boxes", "masks"
ENGINES = ("local", "ray")


@dataclass(frozen=True)
class InputOptions:
    """Which images a run works on.

    Attributes:
        images: files, directories, tar files and URLs, as the user named them.
        include, exclude: glob patterns; see ``ebcli.files.sources.find``.
        shard: (i, n) for the i-th, from 1, of n shards; None for all images.
        remote: limits for files behind URLs and in tar files.
        max_pixels: the size of the largest image that is decoded; None for Pillow's own limit, 179 million.
        stdin: the bytes that the input ``-`` stands for.
        clips: which part of each video is explained.
        labels: the true classes, see ``ebcli.run.labels``; each image is explained for its own and, if it differs, for
            the predicted class, and for what tells the two apart.

    Raises:
        ConfigurationError: there are no images, a pattern is empty, or the shard does not exist.
    """

    images: tuple[Path, ...]
    _: KW_ONLY
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    shard: tuple[int, int] | None = None
    remote: RemoteOptions = field(default_factory=RemoteOptions)
    clips: ClipOptions = field(default_factory=ClipOptions)
    max_pixels: int | None = None
    stdin: bytes | None = None
    labels: Path | None = None

    def __post_init__(self) -> None:
        if not self.images:
            raise ConfigurationError("no images given: name some, as in eb-saliency photo.jpg; -h lists options")
        if not all((*self.include, *self.exclude)):
            raise ConfigurationError("a pattern is empty: drop it, or give one such as '*.jpg'")
        if self.shard is not None and not 1 <= self.shard[0] <= self.shard[1]:
            i, n = self.shard
            raise ConfigurationError(f"shard {i}/{n} does not exist: choose 1/{n} to {n}/{n}")
        check_at_least(1, max_pixels=self.max_pixels)


@dataclass(frozen=True, kw_only=True)
class MapOptions:
    """Which maps are computed.

    Attributes:
        targets: classes by index or name; empty for the ``top_k`` most likely ones of each image besides `against`.
        against: classes by index or name, whose mean map is subtracted in place of the dual's.
        top_k: the number of classes per image if there are no ``targets``, at least 1; None for 1. Of detections and
            segmented classes, the largest number; None for all.
        above: explain the classes whose score is above this, in place of the most likely ones; None for ``top_k``. Of
            segmented classes, those that cover more than this share of the pixels; None for 0.01.
        score: explain the detections that score at least this.
        box: of a detector, explain the detection nearest to this one.
        where: of a segmentation network, explain the class at this pixel (x, y), or in the mask in this file.
        layers: ``named_modules()`` names; ``"input"`` for the pixels, ``"all"`` for one layer per resolution and the
            pixels; empty for the model's default layer.
        contrastive: contrastive maps; marginal ones if False.
        beside: methods whose maps panels show beside the run's own, some of ``COMPARED_METHODS``.
        allow_unsupported: use ordinary gradients, with a warning, where an operation has no excitation rule.
        track_lost_mass: also find the operations at which probability is lost.
        prove: also find how small a part of each image keeps half of the score, in the order of its first map.

    Raises:
        ConfigurationError: a value is out of range, or two of them exclude each other.
    """

    targets: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    top_k: int | None = None
    above: float | None = None
    score: float = 0.5
    box: Box | None = None
    where: tuple[int, int] | Path | None = None
    layers: tuple[str, ...] = ()
    contrastive: bool = True
    beside: tuple[str, ...] = ()
    allow_unsupported: bool = False
    track_lost_mass: bool = False
    prove: bool = False

    @property
    def most(self) -> int:
        """The number of classes per image, if they are the most likely ones."""
        return self.top_k or 1

    def __post_init__(self) -> None:
        check_at_least(1, top_k=self.top_k)
        if not 0 <= self.score <= 1:
            raise ConfigurationError(f"--score is {self.score:g}, but it must be from 0 to 1")
        if self.box is not None and not self.box.area > 0:
            raise ConfigurationError("--box is empty: give X,Y,WIDTH,HEIGHT with a width and height above 0")
        if self.against and not self.contrastive:
            raise ConfigurationError("--against makes a contrastive map: drop --marginal")
        if "marginal" in self.beside and not self.contrastive:
            raise ConfigurationError("the marginal map goes beside the contrastive one: drop --marginal")


@dataclass(frozen=True, kw_only=True)
class WordOptions:
    """What is asked of a vision-language model.

    Attributes:
        question: the question about each image; if it is empty, that for a description.
        answer: the answer to explain; None for the network's own.
        words: the words to explain; none for those with a meaning of their own.
        against: another word to contrast each of them with.
        all_words: explain all words, also such as "of".
        max_tokens: the longest answer of the network.

    Raises:
        ConfigurationError: two of them exclude each other.
    """

    question: str = ""
    answer: str | None = None
    words: tuple[str, ...] = ()
    against: str | None = None
    all_words: bool = False
    max_tokens: int = 64

    def __post_init__(self) -> None:
        if self.against is not None and self.all_words:
            raise ConfigurationError("--against contrasts with one word: drop --all-words")

    @property
    def method(self) -> str:
        """How the maps of words are computed, in words."""
        against = "" if self.against is None else f" against {self.against}"
        return f"contrastive EB{against}{', given answer' * (self.answer is not None)}"


@dataclass(frozen=True)
class OutputOptions:
    """Which files are written, and where.

    Attributes:
        directory: the output directory; nothing is written outside it.
        format: the format of pictures, one of ``FORMATS``; ``auto`` is JPEG for JPEG photos, else PNG.
        max_side: pictures are drawn over photos reduced to this longest side, in pixels; None for their own size.
        raw: also write each image's relevance to a ``.npz`` file.
        panel: one figure per image with all its maps, instead of one picture per map.
        report: also write a gallery page of all results.
        scale: ``"image"`` scales each map on its own, ``"run"`` puts all maps of a run on one scale.
        skip_existing: skip images whose results are up to date.
        overwrite: also replace files that this program did not write.
        annotations: ``"boxes"`` or ``"masks"``: find the region that each map marks, and write all as COCO annotations;
            masks have polygons. None for no regions.
        threshold: ``("max", share)`` or ``("mass", share)``; see ``ebcli.drawing.regions.RegionOptions``.
        records: the file of a table with a row per map; None for no table.

    Raises:
        ConfigurationError: ``max_side`` is below 1.
    """

    directory: Path = Path("saliency")
    _: KW_ONLY
    format: str = AUTO
    max_side: int | None = None
    raw: bool = False
    panel: bool = False
    report: bool = False
    scale: str = IMAGE
    skip_existing: bool = False
    overwrite: bool = False
    annotations: str | None = None
    threshold: tuple[str, float] = ("max", 0.5)
    records: Path | None = None

    def __post_init__(self) -> None:
        check_at_least(1, max_side=self.max_side)


@dataclass(frozen=True, kw_only=True)
class ExecutionOptions:
    """How a run is carried out.

    Attributes:
        dry_run: only list the images.
        fail_fast: stop at the first image that fails.
        batch_size: images per batch; None for the device's default.
        workers: on this machine, the number of processes that decode and draw, 0 for none, None for one per CPU; on
            Ray, the number of processes that hold the network, None for as many as fit.
        image_timeout: the seconds that decoding or drawing an image may take; None for no limit.
        device: ``"auto"`` or any name that torch knows, such as ``"cpu"`` or ``"cuda:1"``.
        dtype: the network's floating-point type, one of ``DTYPES``.
        engine: ``"local"``, this machine, or ``"ray"``, a Ray cluster.
        gpus_per_worker: on Ray, the number of GPUs per worker, or a fraction; None for 1 if there are any.

    Raises:
        ConfigurationError: a value is out of range, or two of them exclude each other.
    """

    dry_run: bool = False
    fail_fast: bool = False
    batch_size: int | None = None
    workers: int | None = None
    image_timeout: float | None = 300.0
    device: str = "auto"
    dtype: str = "float32"
    engine: str = "local"
    gpus_per_worker: float | None = None

    def __post_init__(self) -> None:
        check_at_least(1, batch_size=self.batch_size)
        check_at_least(0, workers=self.workers, gpus_per_worker=self.gpus_per_worker)
        if self.image_timeout is not None and not 0 < self.image_timeout <= 1e6:  # the system's own limit is 2.1e6
            raise ConfigurationError(
                f"image-timeout is {self.image_timeout:g}, but it must be above 0 and at most 1e+06 s"
            )
        if self.engine == "ray" and self.workers == 0:
            raise ConfigurationError("on Ray, at least one worker must hold the network")
        if self.engine == "ray" and self.device not in ("auto", "cpu", "cuda"):
            raise ConfigurationError(f"Ray assigns the GPUs: instead of the device {self.device!r}, give cuda or cpu")


# The name of a value is that of its option, and that of its field except for these
_OPTION_OF = {
    (ModelSpec, "name"): "model",
    (ModelSpec, "like"): "similar_to",
    (MapOptions, "layers"): "layer",
    (MapOptions, "targets"): "target",
    (MapOptions, "beside"): "compare_with",
    (DrawingStyle, "name"): "style",
    (OutputOptions, "directory"): "output",
}
_WITHIN = {"remote", "clips", "preprocessing"}  # which are parts
_SCALE = ("vmin", "vmax", "percentile")  # and the scale of `OutputOptions` are one value
# What a run gets beside its values, what only its records show, and the question of `ask`
_UNTOLD = {"stdin", "login", "query", "track_lost_mass", "words", *_SCALE}
CHOOSING = ("target", "similar_to", "top_k", "above", "labels")


def values_of(*parts: type[Any]) -> dict[str, str]:
    """The names of the values of some parts of a plan, each with its field's."""
    own = [(part, one.name) for part in parts for one in fields(part) if one.name not in _WITHIN]
    return {_OPTION_OF.get((part, name), name): name for part, name in own}


def part_of(kind: type[T], values: Mapping[str, Any], **made: Any) -> T:
    """A part of a plan, with those of some values that are its own."""
    given = {name: values[value] for value, name in values_of(kind).items() if value in values}
    return kind(**{**given, **made})


@dataclass(frozen=True)
class RunPlan:
    """A whole run: which images, which network, which maps, drawn how, written where.

    Raises:
        ConfigurationError: two parts exclude each other.
    """

    inputs: InputOptions
    _: KW_ONLY
    model: ModelSpec = field(default_factory=ModelSpec)
    maps: MapOptions = field(default_factory=MapOptions)
    style: DrawingStyle = field(default_factory=DrawingStyle)
    output: OutputOptions = field(default_factory=OutputOptions)
    execution: ExecutionOptions = field(default_factory=ExecutionOptions)
    words: WordOptions | None = None

    @classmethod
    def of(cls, **values: Any) -> RunPlan:
        """The plan of some values; what follows from them is derived here, and nowhere else.

        Args:
            values: named like the options of the command, with underscores; None for the default. ``layer``, ``target``
                and others that are repeated are tuples, and ``scale`` is a text, see ``_scale``.

        Raises:
            ConfigurationError: a value is wrong, or two exclude each other.
        """
        if unknown := values.keys() - VALUES - _UNTOLD:
            raise TypeError(f"a plan has no value {min(unknown)!r}")
        values = {name: value for name, value in values.items() if value is not None}
        choosing = [name for name in CHOOSING if values.get(name, ()) != ()]
        if len(choosing) > 1:
            one, other = (f"--{name.replace('_', '-')}" for name in choosing[:2])
            raise ConfigurationError(f"{one} and {other} both choose the classes: drop one of them")
        values |= _scale(values.get("scale", IMAGE))
        against, style = values.get("against") or (), values.get("style")
        if "signed" not in values:  # both halves of such a map say what tells the classes apart
            values["signed"] = bool(against) and style not in UNSIGNED_STYLES and not values["vmin"]
        if not {"fit", "resize", "crop"} & values.keys():
            values["fit"] = WHOLE
        if "words" in values:  # an answer is one figure
            values |= {"panel": True, "format": "png" if values.get("format", AUTO) == AUTO else values["format"]}
        described = values.get("similar_to") or values.get("target") or ()
        is_text = "class_names" not in values and takes_texts(values.get("model", ModelSpec.name))
        if values.get("similar_to") or (described and is_text):
            classes, values["target"], values["against"] = as_classes([*map(str, described)], against)
            if values.get("similar_to"):
                values["similar_to"] = tuple(map(Path, classes))
            else:
                values["class_names"] = classes
        clips, remote = part_of(ClipOptions, values), part_of(RemoteOptions, values)
        return cls(
            part_of(InputOptions, values, clips=clips, remote=remote),
            model=part_of(ModelSpec, values, preprocessing=part_of(Preprocessing, values)),
            maps=part_of(MapOptions, values),
            style=part_of(DrawingStyle, values),
            output=part_of(OutputOptions, values),
            execution=part_of(ExecutionOptions, values),
            words=values.get("words"),
        )

    @property
    def values(self) -> dict[str, Any]:
        """All values of the plan; `of` makes the same plan of them."""
        model, style = self.model, self.style
        named = ((part, values_of(type(part)).items()) for part in self._parts)
        found = {value: getattr(part, name) for part, names in named for value, name in names if value not in _UNTOLD}
        end = style.vmax if style.percentile is None else f"{style.percentile!r}%"
        end = self.output.scale if end is None else end
        found["scale"] = f"{style.vmin!r},{end}" if style.vmin else str(end)
        if model.described:
            for name in ("target", "against"):
                found[name] = tuple(model.described[int(index)] for index in found[name])
            if model.like:
                found |= {"similar_to": tuple(map(Path, found["target"])), "target": ()}
            else:
                found["class_names"] = None
        return found

    @property
    def _parts(self) -> tuple[Any, ...]:
        inputs, model = self.inputs, self.model
        of_model = (model, model.preprocessing, self.maps)
        return inputs, inputs.clips, inputs.remote, *of_model, self.output, self.style, self.execution

    def but(self, **values: Any) -> RunPlan:
        """The plan with other values."""
        return self.of(**self.values | values)

    def __post_init__(self) -> None:
        style, output = self.style, self.output
        if self.inputs.stdin is not None and self.execution.engine == "ray":
            raise ConfigurationError("other machines cannot read stdin: name a file, or drop --engine ray")
        if style.signed and not self.maps.contrastive:
            raise ConfigurationError("a marginal map has no negative values: drop signed, or choose contrastive maps")
        if style.name == "mask" and output.format == "jpg" and not output.panel:
            raise ConfigurationError("the style mask needs transparency, which jpg lacks: choose png or webp")
        if output.format in FIGURE_FORMATS and not output.panel:
            raise ConfigurationError(f"{output.format} files hold figures: add --panel, or choose png, jpg or webp")
        if style.caption and output.panel:
            raise ConfigurationError("a panel has captions of its own: drop caption")
        if self.maps.beside and not output.panel:
            raise ConfigurationError("--compare-with draws another method's map into panels: add --panel")


# The names of all values
VALUES = values_of(*map(type, RunPlan(InputOptions((Path(),)))._parts)).keys() - _UNTOLD


def _scale(text: str) -> dict[str, Any]:
    """The fields of a scale: ``image``, ``run``, its upper end, or a percentile such as ``99%``.

    A lower end may stand in front of it: ``0.5,run``.
    """
    low, _, end = text.rpartition(",")
    is_percentile = end.endswith("%")
    try:
        return {
            "vmin": float(low or 0),
            "vmax": None if is_percentile or end in SCALES else float(end),
            "percentile": float(end[:-1]) if is_percentile else None,
            "scale": end if end in SCALES else IMAGE,
        }
    except ValueError as error:
        what = "image, run, a number or a percentile such as 99%; or LOW and one of these, as in 1,run"
        raise ConfigurationError(f"--scale is {text!r}, but it must be {what}") from error
