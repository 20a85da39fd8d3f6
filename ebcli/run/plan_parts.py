"""The parts of a plan, which check themselves; the command's options check choices among words.

Imports neither torch nor Click.
"""

import os
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any

from ebcli.datatypes.explanation import Box, Size
from ebcli.datatypes.query import Query
from ebcli.errors import ConfigurationError, check_at_least, check_value
from ebcli.files.clips import ClipOptions
from ebcli.files.naming import AUTO, COCO, FIFTYONE_FILES, FIGURE_FORMATS, HTML, STDOUT
from ebcli.files.paths import RemoteOptions
from ebcli.methods.table import CONTRASTIVE, Method, find_method

FORMATS = (AUTO, "png", "jpg", "webp", *FIGURE_FORMATS, HTML)
VIDEOS = dict.fromkeys((".mp4", ".webm", ".gif", ".apng"), AUTO)
PICTURES = {f".{name}": name for name in FORMATS[1:]} | {".jpeg": "jpg"} | VIDEOS  # by a file's suffix
_OTHER_PICTURES = {".avif", ".bmp", ".eps", ".heic", ".jp2", ".mkv", ".mov", ".tif", ".tiff"}
_VOLUMES = {".gz", ".nii"}
_ARRAYS = {*".dcm .h5 .hdf5 .ima .mat .mgz .mha .npy .npz .nrrd .pt .pth .zarr".split()}
_TABLES = {".csv", ".parquet", ".tsv", ".xlsx"}
_TEXTS = {*".json .jsonl .log .md .toml .txt .xml .yaml .yml .zip".split()}
_NOT_PICTURES = _OTHER_PICTURES | _VOLUMES | _ARRAYS | _TABLES | _TEXTS  # any other name may be a directory's
DTYPES = ("float32", "bfloat16")
ONLY = ("wrong",)  # the images that have maps
SCALES = IMAGE, RUN = "image", "run"
BOXES, MASKS, HEATMAPS = "boxes", "masks", "heatmaps"
CANDIDATES = WINDOWS, PHOTO = "windows", "photo"
ANNOTATIONS = {BOXES: (COCO,), MASKS: (COCO,), HEATMAPS: FIFTYONE_FILES}  # and their files
ENGINES = ("local", "ray")
NO_THRESHOLD = "is not a threshold: give a share between 0 and 1, as in 0.5 or mass:0.8"
Names = tuple[str, ...]
Shard = tuple[int, int]  # its number, from 1, and how many there are
Values = dict[str, Any]  # of options


@dataclass(frozen=True)
class InputOptions:
    """Which images a run works on.

    Attributes:
        images: files, directories, tar files and URLs, as the user named them.
        include, exclude: glob patterns; see ``ebcli.files.sources.find_sources``.
        shard: (i, n) for the i-th, from 1, of n shards; None for all images.
        remote: limits for files behind URLs and in tar files.
        max_pixels: the size of the largest image that is decoded; None for Pillow's own limit, 179 million.
        stdin: the bytes that the input ``-`` stands for.
        clips: which part of each video is explained.
        allow_truncated: explain what is there of images that are cut off, in place of a failure.
        labels: the true classes, see ``ebcli.run.prepare.with_labels``; each image is explained for its own and, if it
            differs, for the predicted class, and for what tells the two apart.

    Raises:
        ConfigurationError: there are no images, a pattern is empty, or the shard does not exist.
    """

    images: tuple[Path, ...]
    _: KW_ONLY
    include: Names = ()
    exclude: Names = ()
    shard: Shard | None = None
    remote: RemoteOptions = field(default_factory=RemoteOptions)
    clips: ClipOptions = field(default_factory=ClipOptions)
    max_pixels: int | None = None
    stdin: bytes | None = None
    labels: Path | None = None
    allow_truncated: bool = False

    def __post_init__(self) -> None:
        if not self.images:
            raise ConfigurationError(
                "no images given: name some, as in eb-saliency photo.jpg; -h lists options"
            )
        if not all((*self.include, *self.exclude)):
            raise ConfigurationError("a pattern is empty: drop it, or give one such as '*.jpg'")
        i, n = self.shard or (1, 1)
        if not 1 <= i <= n:
            raise ConfigurationError(f"shard {i}/{n} does not exist: choose 1/{n} to {n}/{n}")
        check_at_least(1, max_pixels=self.max_pixels)


@dataclass(frozen=True, kw_only=True)
class MapOptions:
    """Which maps are computed.

    Attributes:
        targets: classes by index or name; empty for the ``top_k`` most likely ones of each image besides `against`.
        against: classes by index or name, whose mean map is subtracted in place of the dual's.
        top_k: the largest number of classes per image if there are no ``targets``, at least 1; None for 1. For
            detections and segmented classes, None is all, and for values up to 20.
        above: explain the classes whose score is above this, in place of the most likely ones; None for ``top_k``. Of
            segmented classes, those that cover more than this share of the pixels; None for 0.01.
        score: explain the detections that score at least this.
        where: of a segmentation network, explain the class at this pixel (x, y), or in the mask in this file; of a
            network that returns maps of values, the value there; of a detector, the detection that overlaps most with
            this box.
        layers: ``named_modules()`` names; ``"input"`` for the pixels, ``"all"`` for one layer per resolution and the
            pixels; empty for the model's default layer.
        methods: the names of the methods that compute the maps, see ``ebcli.methods.table``.
        beside: methods whose maps panels show beside the run's own.
        allow_unsupported: use ordinary gradients, with a warning, where an operation has no excitation rule.
        track_lost_mass: also find the operations at which probability is lost.
        at: rank the classes at this pixel (x, y) of each image, and draw an atlas.
        candidates: explain the likeliest classes of nine windows of each image (``"windows"``), or the twenty likeliest
            ones of the image (``"photo"``), or the classes in this file, one a line; None if the classes are chosen in
            another way.
        sufficiency: also find how small a part of each image keeps half of the score, in the order of its first map.
        only: ``"wrong"`` computes maps of images with a wrong prediction only, given labels; None for all images.

    Raises:
        ConfigurationError: a value is out of range, or two of them exclude each other.
    """

    targets: Names = ()
    against: Names = ()
    top_k: int | None = None
    above: float | None = None
    score: float = 0.5
    where: Size | Box | Path | None = None
    layers: Names = ()
    methods: Names = (CONTRASTIVE,)
    beside: Names = ()
    allow_unsupported: bool = False
    track_lost_mass: bool = False
    at: Size | None = None
    candidates: str | Path | None = None
    sufficiency: bool = False
    only: str | None = None

    @property
    def method_entries(self) -> list[Method]:
        """The methods, in order."""
        return [*map(find_method, self.methods)]

    @property
    def entries_beside(self) -> list[Method]:
        """The methods whose maps panels show beside, in order."""
        return [*map(find_method, self.beside)]

    @property
    def contrastive(self) -> bool:
        """Whether there are contrastive maps."""
        return CONTRASTIVE in self.methods

    @property
    def max_classes(self) -> int:
        """The number of classes per image, if they are the most likely ones."""
        return self.top_k or 1

    def __post_init__(self) -> None:
        check_at_least(1, top_k=self.top_k)
        check_value("--score", self.score, lambda it: 0 <= it <= 1, "from 0 to 1")
        if isinstance(self.where, Box) and not self.where.area > 0:
            advice = "give X,Y,WIDTH,HEIGHT with a width and height above 0"
            raise ConfigurationError(f"--where is an empty box: {advice}")
        self._check_methods()

    def _check_methods(self) -> None:
        """Raise ConfigurationError if two values about methods exclude each other."""
        twice = [name for name in self.beside if name in self.methods]
        if twice:
            raise ConfigurationError(f"the {twice[0]} map is there already: drop --compare-with {twice[0]}")
        if self.against and not any(method.takes_against for method in self.method_entries):
            problem = f"--against compares classes, which {self.methods[0]} maps do not"
            raise ConfigurationError(f"{problem}: drop it, or choose --method contrastive")


@dataclass(frozen=True, kw_only=True)
class WordOptions:
    """What is asked of a vision-language model.

    Attributes:
        question: the question about each image; if it is empty, that for a description.
        answer: the answer to explain; None for the network's own.
        questions: the file of several questions about each image, one a line; or a CSV file with those of each image.
        answers: the CSV file of the answers to explain, see ``ebcli.run.questions.read_queries``.
        words: the words to explain where they are said; none for those with a meaning of their own.
        phrases: likewise, several words in a row that have one map.
        against: another word to contrast each of them with.
        all_words: explain all words, also such as "of".
        max_tokens: the longest answer of the network.

    Raises:
        ConfigurationError: two of them exclude each other.
    """

    question: str = ""
    answer: str | None = None
    questions: Path | None = None
    answers: Path | None = None
    words: Names = ()
    phrases: Names = ()
    against: str | None = None
    all_words: bool = False
    max_tokens: int = 64

    def __post_init__(self) -> None:
        spaced = [word for word in self.words if len(word.split()) != 1]
        if spaced:
            raise ConfigurationError(f"--word takes one word: use --phrase {spaced[0]!r}")
        if not all(map(str.strip, self.phrases)):
            raise ConfigurationError("a phrase is empty: drop it")
        if self.against is not None and self.all_words:
            raise ConfigurationError("--against contrasts with one word: drop --all-words")
        self._check_sources()

    def _check_sources(self) -> None:
        """Raise ConfigurationError if questions or answers come from two places."""
        if self.questions is not None and (self.question or self.answers):
            other = "--answers" if self.answers else "QUESTION"
            raise ConfigurationError(f"{other} and --questions both ask: drop one of them")
        if self.answer is not None and self.answers is not None:
            raise ConfigurationError("--answer and --answers both answer: drop one of them")

    def about(self, query: Query) -> "WordOptions":
        """The same of one query."""
        return replace(self, questions=None, answers=None, **query._asdict())

    @property
    def table(self) -> Path | None:
        """The file that asks about each image by itself; None if all are asked the same."""
        if self.questions is not None and self.questions.suffix.lower() == ".csv":
            return self.questions
        return self.answers

    @property
    def method(self) -> str:
        """How the maps of words are computed, in words."""
        words = "contrastive EB"
        if self.against is not None:
            words += f" against {self.against}"
        if self.answer is not None or self.answers is not None:
            words += ", given answer"
        return words


def not_a_picture(path: Path, image: Path) -> ConfigurationError:
    """The error that a picture of an image cannot have such a name; it says where other results are."""
    suffix = path.suffix.lower()
    name = image.name if image.suffix else "INPUT"  # a directory may hold many inputs
    advice = "choose .png, .jpg or .webp, .pdf or .svg for a figure, or .html for a page"
    if suffix in _VOLUMES:
        suffix = "".join(path.suffixes[-2:]).lower()
        advice = f"with -o DIRECTORY --raw, the map of a volume is 'DIRECTORY/{name}.INDEX-CLASS.nii.gz'"
    elif suffix in _ARRAYS:
        advice = f"with -o DIRECTORY --raw, the maps are in 'DIRECTORY/{name}.npz'"
    elif suffix in _TABLES:
        advice = "name a directory, and add --records FILE.csv for a table with a row per map"
    elif suffix in _TEXTS:
        advice = "name a directory, whose records.jsonl has the numbers, or add --json to print them"
    return ConfigurationError(f"pictures cannot be written as {suffix}: {advice}")


@dataclass(frozen=True)
class OutputOptions:
    """Which files are written, and where.

    Attributes:
        directory: the output directory; nothing is written outside it. Or the file of the only picture, or ``STDOUT``.
        format: the format of pictures, one of ``FORMATS``; ``auto`` is JPEG for JPEG photos, else PNG. ``html`` is a
            page on which pointing at a place ranks the classes there.
        max_side: pictures are drawn over photos reduced to this longest side, in pixels; None for their own size.
        raw: also write each image's relevance to a ``.npz`` file.
        panel: one figure per image with all its maps, instead of one picture per map.
        report: also write a gallery page of all results.
        scale: ``"image"`` scales each map on its own, ``"run"`` puts all maps of a run on one scale.
        skip_existing: skip images whose results are up to date.
        overwrite: also replace files that this program did not write.
        annotations: ``"boxes"`` or ``"masks"``: find the region that each map marks, and write all as COCO annotations;
            masks have polygons. ``"heatmaps"``: write all maps as a dataset of FiftyOne, and ``raw``. None for neither.
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

    @property
    def is_file(self) -> bool:
        """Whether the only picture goes to a file of this name, or to stdout, and not to a directory."""
        path = self.directory
        is_file = path.suffix.lower() in PICTURES.keys() | _NOT_PICTURES
        return path == STDOUT or (is_file and not os.path.isdir(path))

    def __post_init__(self) -> None:
        check_at_least(1, max_side=self.max_side)
        if self.annotations == HEATMAPS:
            object.__setattr__(self, "raw", True)

    @staticmethod
    def of_threshold(threshold: str | float) -> tuple[str, float]:
        """What ``0.5``, ``max:0.5`` or ``mass:0.8`` means. Raises ConfigurationError for anything else."""
        kind, _, share = str(threshold).rpartition(":")
        with suppress(ValueError):
            if kind in ("", "max", "mass") and 0 < float(share) < 1:
                return kind or "max", float(share)
        raise ConfigurationError(f"{threshold!r} {NO_THRESHOLD}")

    @staticmethod
    def of_scale(text: str) -> Values:
        """The values of a scale: ``image``, ``run``, its upper end, or a percentile such as ``99%``.

        A lower end may stand in front of it: ``0.5,run``.
        """
        low, _, end = text.rpartition(",")
        values: Values = {"vmax": None, "percentile": None, "scale": IMAGE}
        try:
            values["vmin"] = float(low or 0)
            if end in SCALES:
                values["scale"] = end
            elif end.endswith("%"):
                values["percentile"] = float(end[:-1])
            else:
                values["vmax"] = float(end)
        except ValueError as error:
            choices = "image, run, a number or a percentile such as 99%; or LOW and one of these, as in 1,run"
            raise ConfigurationError(f"--scale is {text!r}, but it must be {choices}") from error
        return values


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
        # the system's own limit is 2.1e6
        check_value(
            "image-timeout", self.image_timeout, lambda it: 0 < it <= 1e6, "above 0 and at most 1e+06 s"
        )
        if self.engine != "ray":
            return
        if self.workers == 0:
            raise ConfigurationError("on Ray, at least one worker must hold the network")
        if self.device not in ("auto", "cpu", "cuda"):
            advice = f"instead of the device {self.device!r}, give cuda or cpu"
            raise ConfigurationError(f"Ray assigns the GPUs: {advice}")
