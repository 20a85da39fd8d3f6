"""A loaded network, its classes by index or by name, and the hashes that identify it. Imports no torch."""

from __future__ import annotations

import csv
import difflib
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from PIL import Image

from ebcli.errors import ConfigurationError, UnknownClassError, closest
from ebcli.files.ownership import file_digest
from ebcli.imports import installed_version
from ebcli.models.keywords import BUNDLED, CLASSIFICATION, DEFAULT, RAW, SIGMOID, SOFTMAX, UNTRAINED
from ebcli.models.spec import Preprocessing
from ebcli.nouns.input_spec import InputSpec

if TYPE_CHECKING:
    from torch import Tensor, nn

# What is known of the bundled network before it is loaded
NAME = "IMAGENET1K_V1"  # of its weights, as torchvision would call them
DEFAULT_LAYER = "features.11"  # as ``default_layer`` finds it
STRENGTH_ON_NOISE = 0.0018  # of contrastive maps at that layer, as ``ebcli.run.noise_and_sufficiency`` measures it
# (x - 127) / 128 for pixels of 0 to 255
PRESET = InputSpec(
    (224, 224), mean=(127 / 255,) * 3, std=(128 / 255,) * 3, resample=Image.Resampling.BICUBIC, network=BUNDLED
)

Names = Sequence[str] | None  # of classes, in the order of the network's outputs

_MOST_BYTES = 1 << 24  # of a file of class names
# Control characters and halves of characters; line and paragraph separators; overrides of the direction of text
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\u2028-\u202e\u2066-\u2069]")
_SHOWN = 5  # names in a message
_HEADINGS = {"file", "filename", "image", "path"}
_LONGEST_LINE = 1 << 20  # characters; the reader refuses fields of this length
_LIKE = 0.6  # of 1: names to choose among, where a wrong one does no harm


def resolve_class(categories: Names, target: str | int, num_classes: int | None = None) -> int:
    """Index of a class given by index or by name.

        resolve_class(categories, 281)            # 281
        resolve_class(categories, "281")          # 281
        resolve_class(categories, "Tabby")        # 281: case does not matter
        resolve_class(categories, "tiger cat")    # 282
        resolve_class(categories, "tabb")         # 281: part of only one name

    Args:
        categories: class names in the order of the output units; None if unknown.
        target: an index, as a number or as text, or a name.
        num_classes: number of output units; None for as many as there are categories.

    Raises:
        ConfigurationError: no class matches, or several do; the message lists the closest or the matching names.
    """
    found = matching_classes(categories, target, num_classes)
    if len(found) > 1 and categories is not None:
        shown = ", ".join(f"{index} {categories[index]!r}" for index in found[:_SHOWN])
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise ConfigurationError(f"class {str(target)!r} matches {shown}{more}: give the full name or the index")
    return found[0]


def matching_classes(categories: Names, target: str | int, num_classes: int | None = None) -> tuple[int, ...]:
    """Indices of the classes that an index or a name can mean.

    An exact match wins over one that ignores case, that wins over those with the name as a whole word, and these win
    over those with it as a part. ImageNet has both a dog "Cardigan" and a garment "cardigan".

    Args:
        categories: class names in the order of the output units; None if unknown.
        target: an index, as a number or as text, or a name.
        num_classes: number of output units; None for as many as there are categories.

    Raises:
        ConfigurationError: no class matches; the message lists the closest names.
    """
    count = num_classes if num_classes is not None or categories is None else len(categories)
    text = str(target).strip()
    if not re.fullmatch("[+-]?[0-9]{1,18}", text):  # int() also takes 1_0
        return _with_name(categories, text, count)
    index = int(text)
    if index < 0 or (count is not None and index >= count):
        valid = "0 or more" if count is None else f"0 to {count - 1}"
        raise ConfigurationError(f"class {index} does not exist: valid indices are {valid}")
    return (index,)


def printable(name: str) -> str:
    """A class name in which control characters, line breaks and text direction overrides are replaced by U+FFFD.

    Class names reach terminals, pages and file names, and may come from a downloaded model.
    """
    return _UNSAFE.sub("\ufffd", name)


def _with_name(categories: Names, name: str, count: int | None) -> tuple[int, ...]:
    if categories is None:
        valid = "" if count is None else f", 0 to {count - 1}"
        raise ConfigurationError(f"the class names of this network are unknown: give {name!r} as an index{valid}")
    folded = name.casefold()
    word = re.compile(rf"(?<!\w){re.escape(folded)}(?!\w)")
    tests = (
        lambda category: category == name,
        lambda category: category.casefold() == folded,
        lambda category: word.search(category.casefold()),
        lambda category: folded in category.casefold(),
    )
    for test in tests if folded else ():
        if matches := tuple(index for index, category in enumerate(categories) if test(category)):
            return matches
    usual = f"give one of the {len(categories)} class names or an index, or --model clip/NAME for any text"
    like = {category.casefold(): category for category in categories}
    near = difflib.get_close_matches(folded, like, cutoff=_LIKE)
    raise UnknownClassError(name, closest(name, categories) or usual, (like[found] for found in near))


def read_class_names(path: Path) -> list[str]:
    """Read class names, in the order of the logits, from a file.

    The file has one name per line, or is JSON: a list of names, or an object that maps indices to names, such as
    ``{"0": "tench", "1": "goldfish"}`` or ImageNet's ``{"0": ["n01440764", "tench"], ...}``.

    Raises:
        ConfigurationError: the file cannot be read, has another format, or lacks a name.
    """
    is_json = path.suffix.lower() == ".json"
    try:
        with path.open("rb") as file:
            read = file.read(_MOST_BYTES + 1)
        if len(read) > _MOST_BYTES:
            raise ConfigurationError(f"it has more than {_MOST_BYTES} bytes")
        text = read.decode("utf-8-sig")
        content: Any = json.loads(text) if is_json else [line for line in text.splitlines() if line.strip()]
    except (OSError, ValueError, RecursionError) as error:  # invalid UTF-8 or JSON; JSON nested too deeply
        raise ConfigurationError(f"cannot read class names from '{path}': {error}") from error
    if isinstance(content, dict):
        expected = [str(index) for index in range(len(content))]
        if set(content) != set(expected):
            raise ConfigurationError(f'class names in \'{path}\' must have the keys "0" to "{len(content) - 1}"')
        content = [content[index] for index in expected]
    entries = content if isinstance(content, list) else []
    names = [entry[-1] if isinstance(entry, list) and entry else entry for entry in entries]
    if not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise ConfigurationError(
            f"class names in '{path}' must be one per line, or in JSON a list, or an object with indices and names"
        )
    return [name.strip() for name in names]


class LabelLine(NamedTuple):
    """A line of a file of labels: its number, counted from 1, and its class."""

    line: int
    label: int


Labels = Mapping[tuple[str, ...], LabelLine]


def read_labels(path: Path, categories: Names, num_classes: int) -> Labels:
    """The rows of a CSV file of two columns, a file and its class by index or name; by the parts of the file's path.

    Raises:
        ConfigurationError: the file cannot be read, a class does not exist, or a file has two classes.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(iter(partial(file.readline, _LONGEST_LINE), ""))
            rows = [(reader.line_num, row) for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"cannot read labels from '{path}': {reason}") from error
    if rows and rows[0][1][0].strip().lower() in _HEADINGS:
        del rows[0]
    table: dict[tuple[str, ...], LabelLine] = {}
    for line, row in rows:
        if len(row) != 2:
            raise ConfigurationError(f"{path}, line {line}: {','.join(row)!r} must be a file, a comma, a class")
        try:
            label = resolve_class(categories, row[1].strip(), num_classes)
        except ConfigurationError as error:
            raise ConfigurationError(f"{path}, line {line}: {error}") from error
        first = table.setdefault(Path(row[0]).parts, LabelLine(line, label))
        if first.label != label:
            raise ConfigurationError(
                f"{path}, line {line}: {row[0]!r} has class {label}, but {first.label} in line {first.line}: keep one"
            )
    return table


@dataclass(frozen=True)
class LoadedModel:
    """A network with its preprocessing and its class names.

    Attributes:
        name: the name it was loaded by, such as ``"vgg16"``.
        net: maps images (B, 3, H, W) to logits (B, num_classes); detectors and segmentation networks to
            (B, num_classes, ...); networks for video map clips (B, 3, T, H, W). In evaluation mode, on its device. A
            detector is wrapped by ``DetectionScores``.
        transforms: the preprocessing, which maps an image to the network's input (3, H, W): its ``size``, ``resize``,
            ``fit``, ``mean``, ``std`` and ``resample``. For video, it maps 8-bit frames (T, 3, H, W) to a clip
            (3, T, H, W), of ``frames`` frames at ``rate`` per second.
        categories: class names in the order of the logits; None if unknown.
        weights: name of the weights, path of the checkpoint, ``"factory"`` for those that a factory returned,
            ``"file"`` for those in the file of a network, or ``"none"``.
        num_classes: number of classes.
        scores: how logits become scores: ``"softmax"``, ``"sigmoid"`` or ``"raw"``.
        files: files whose content defines the network: a checkpoint, a model file.
        task: ``"classification"``, ``"detection"``, ``"segmentation"`` or ``"video"``.
        one_by_one: whether the network takes a single image only.
        preprocessing: the settings that replaced those of the network's own preprocessing.
        fit: the preprocessing with other settings; None if there is no other.
        retold: the classifier by other texts; None if the network does not compare images with texts.

    Examples:
        >>> import ebcli
        >>> from PIL import Image
        >>> loaded = ebcli.load_model()
        >>> loaded.transforms(Image.open("sample_images/coffee.jpg")).shape
        torch.Size([3, 224, 224])
        >>> loaded.categories[967]
        'espresso'
    """

    name: str
    net: nn.Module
    _: KW_ONLY
    transforms: InputSpec
    categories: tuple[str, ...] | None = None
    weights: str = DEFAULT
    num_classes: int = 0
    files: tuple[Path, ...] = ()
    scores: str = SOFTMAX
    task: str = CLASSIFICATION
    one_by_one: bool = False
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    fit: Callable[[Preprocessing], InputSpec] | None = field(default=None, compare=False)
    retold: Callable[[Sequence[str]], nn.Module] | None = field(default=None, compare=False)

    def __repr__(self) -> str:  # a network in full would fill screens
        return f"<{self.name}, weights {self.weights}, for {self.task}, {self.num_classes} classes>"

    def category(self, index: int) -> str | None:
        """The name of a class; None if it is unknown."""
        return self.categories[index] if self.categories else None

    def with_preprocessing(self, settings: Preprocessing) -> LoadedModel:
        """The same network, which gets images otherwise."""
        if settings == self.preprocessing or self.fit is None:
            return self
        return replace(self, transforms=self.fit(settings), preprocessing=settings)

    def with_texts(self, texts: Sequence[str]) -> LoadedModel:
        """The same network, which compares images with other texts; it is not loaded again.

        Raises:
            ConfigurationError: it compares images with no texts, or one of these is empty or too long.
        """
        if self.retold is None:
            raise ConfigurationError(f"{self.name} compares images with no texts: choose clip/NAME")
        names = tuple(map(printable, texts))
        return replace(self, net=self.retold(texts), categories=names, num_classes=len(names))

    @property
    def trained(self) -> bool:
        """Whether weights were loaded, or a factory returned the network with ``"DEFAULT"`` weights."""
        return self.weights != UNTRAINED

    def to_scores(self, logits: Tensor) -> Tensor:
        """Scores (..., num_classes) of logits: their softmax, their sigmoid, or the logits themselves."""
        if self.scores == RAW:
            return logits
        return logits.sigmoid() if self.scores == SIGMOID else logits.softmax(-1)


def configuration_hash(settings: Mapping[str, object]) -> str:
    """Hash settings; equal settings give equal hashes, in any order."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def network_settings(loaded: LoadedModel) -> dict[str, object]:
    """Everything about this program and the network that results depend on, for ``configuration_hash``.

    Checkpoints and model files count by their content, not their path.
    """
    scores = {} if loaded.scores == SOFTMAX else {"scores": loaded.scores}
    return {
        "version": installed_version().split(".")[:2],  # patch releases compute the same
        "model": loaded.name,
        "weights": None if Path(loaded.weights) in loaded.files else loaded.weights,
        "files": [content_hash(file) for file in loaded.files],
        "preprocessing": repr(loaded.transforms),
        "categories": loaded.categories,
        **scores,
    }


def content_hash(path: Path) -> str:
    """SHA-256 of a file. Raises ConfigurationError if it cannot be read."""
    try:
        return file_digest(path, follow=True)
    except OSError as error:
        raise ConfigurationError(f"cannot read '{path}': {error.strerror}") from error
