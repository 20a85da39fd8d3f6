"""What a task is: how the output of a network becomes the subjects of maps."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from ebcli.datatypes.explanation import Box, Explanation, Map, Subject
from ebcli.drawing.style import ATLAS
from ebcli.errors import ConfigurationError
from ebcli.heads import single_tensor
from ebcli.models import LoadedModel
from ebcli.models.keywords import CLASSIFICATION, DETECTION, OWN_TASKS, RAW, TASKS
from ebcli.run.plan import RunPlan, values_of
from ebcli.run.plan_parts import MapOptions, WordOptions

if TYPE_CHECKING:
    from ebcli.run.network_description import NetworkDescription
    from ebcli.run.reading import NetworkInput


@dataclass(frozen=True)
class ImageRequest:
    """What is asked of an image.

    Attributes:
        network: the network, with the classes to explain in every image and those to contrast with.
        maps: the options.
        labeled: whether images are explained for their true class, and for the most likely one.
        label: the true class, if it is known.
        size: the image's width and height.
        place: the rectangle of the image that the network sees.
        words: what is asked of a vision-language model; None for other networks.
        on_text: gets the answer as far as it is, again and again; None if nobody asks for it.
        window_scores: the scores (9, num_classes) of windows of the image; None if they choose no classes.
    """

    network: NetworkDescription
    maps: MapOptions
    _: KW_ONLY
    labeled: bool = False
    label: int | None = None
    size: tuple[int, int] = (0, 0)
    place: Box = Box(0, 0, 0, 0)  # noqa: RUF009 - it is frozen
    words: WordOptions | None = None
    on_text: Callable[[str], None] | None = None
    window_scores: Tensor | None = None

    @property
    def model(self) -> LoadedModel:
        """The network, as it was loaded."""
        return self.network.loaded

    @property
    def crop(self) -> Box:
        """The rectangle of the image that the preprocessing keeps."""
        return self.model.transforms.place(self.size)

    def subject(self, index: int, score: float, **fields: Any) -> Subject:
        """A subject of a class; for the other arguments, see ``Subject``."""
        return Subject(index, self.model.category(index), score, **fields)


Requests = Sequence[ImageRequest]


class Pieces(NamedTuple):
    """The tiles of a photo or the clips of a video, each of which is explained for the same subjects.

    Attributes:
        unit: what one of them is called.
        pixels: what the network gets of each.
        join: makes one map of the maps of all, given their scores (pieces, num_classes).
    """

    unit: str
    pixels: Sequence[NDArray[Any]]
    join: Callable[[ArrayLike, Sequence[Map]], Map]


def class_scores(model: LoadedModel, logits: Tensor) -> Tensor:
    """The scores (B, ..., num_classes) of logits (B, num_classes, ...)."""
    return model.to_scores(logits.detach().movedim(1, -1))


def run_network(inputs: Tensor, requests: Requests) -> Sequence[Any]:
    """The scores of each of the inputs (B, C, ...)."""
    model = requests[0].model
    return [*class_scores(model, single_tensor(model.net(inputs), "the output"))]


@dataclass(frozen=True)
class Task:
    """A task.

    Attributes:
        subjects: what is explained in an image, in order, given what ``run`` returns for it.
        networks: what networks for the task are called, for messages.
        options: its options among those that only some tasks have, as messages name them.
        run: what the network finds in inputs (B, C, ...), given what is asked of each image; by default, the scores
            (num_classes,) or (..., num_classes) of each, which need no pass of their own.
        place: the rectangle of an image that its maps cover; by default, what the preprocessing keeps.
        pieces: the tiles or clips in which an image is explained; None if it is explained at once.
        width: the number of subjects that are explained at a time.
        in_batches: whether images with any numbers of subjects share a batch.
        joint: whether winning neurons are explained jointly; None if the network decides.
        score: the score of a subject, given what ``subjects`` got for the image, or for the image partly blurred; of
            tasks with the option ``sufficiency``.
        layer: the only layer at which it has maps; None if layers can be chosen.
        explain: explains an image, in place of all of the above.
    """

    subjects: Callable[[Any, ImageRequest], list[Subject]]
    networks: str
    _: KW_ONLY
    options: Collection[str] = ()
    run: Callable[[Tensor, Requests], Sequence[Any]] = run_network
    place: Callable[[ImageRequest], Box] = lambda request: request.crop
    pieces: Callable[[LoadedModel, NetworkInput], Pieces | None] = lambda *_: None
    width: Callable[[ImageRequest], int] = lambda request: 1 if request.network.against else _WIDTH
    in_batches: bool = False
    joint: bool | None = None
    score: Callable[[Any, Subject], float] = lambda _output, subject: subject.score
    layer: str | None = None
    explain: Callable[[NetworkInput, ImageRequest], Explanation] | None = None

    @property
    def has_own_pass(self) -> bool:
        """Whether the network runs once more to find the subjects."""
        return self.run is not run_network


# a detector's output has millions of elements; classes to contrast with share their subject's place
_WIDTH = 4


REGISTRY: dict[str, Task] = {}


def register(name: str, task: Task) -> None:
    """Add a task, which networks name in their attribute ``task``; a file that is executed again replaces its own.

    Raises:
        ConfigurationError: the package has a task of that name.
    """
    if name in TASKS and name in REGISTRY:
        raise ConfigurationError(f"there is a task {name!r} already: choose another name")
    REGISTRY[name] = task
    OWN_TASKS.add(name)


def check_options(plan: RunPlan, model: LoadedModel) -> None:
    """Raise ConfigurationError if the plan has options that the network's task does not have."""
    maps = plan.maps
    for option, field in values_of(MapOptions).items():
        value = getattr(maps, field.name)
        if value != field.default:
            _check_option("where X,Y,W,H" if isinstance(value, Box) else option, model)
    if plan.inputs.labels is not None:
        _check_option("labels", model)
    _check_data(plan, model)
    if model.inputs is not None and model.transforms.tiles:
        problem = f"--tiles cuts photos, but the other inputs of {model.name} belong to whole photos"
        raise ConfigurationError(f"{problem}: drop it")
    if maps.sufficiency:
        _check_scores(model)


def _check_data(plan: RunPlan, model: LoadedModel) -> None:
    """Raise ConfigurationError if the plan has options that are for other kinds of data than the network's."""
    task = REGISTRY[model.task]
    maps = plan.maps
    spec = model.transforms
    style = plan.style.name
    is_image = spec.axes == "HW"
    is_volume = spec.depth is not None
    has_atlas = is_image and "at" in task.options
    dtype = plan.execution.dtype
    limits = [
        ("--annotations marks regions of images", plan.output.annotations, is_image),
        ("--compare-with compares maps of images", maps.beside, not is_volume),
        ("--style atlas or --format html compares the classes of images", style == ATLAS, has_atlas),
        ("--candidates compares the classes of images", maps.candidates, has_atlas),
        ("--sufficiency blurs parts of images", maps.sufficiency, is_image),
        ("--style mask needs transparency, which videos lack", style == "mask", spec.frames is None),
        ("--tiles works only with classifiers", spec.tiles, model.task == CLASSIFICATION),
        (f"dtype {dtype} has no non-maximum suppression", dtype != "float32", model.task != DETECTION),
    ]
    kind = "volumes" if is_volume else model.task
    for limit, is_asked, is_possible in limits:
        if is_asked and not is_possible:
            raise ConfigurationError(f"{limit}, but {model.name} is for {kind}: drop it")


def _check_scores(model: LoadedModel) -> None:
    """Raise ConfigurationError if it has no meaning to halve a score."""
    if model.transforms.tiles:
        problem = "--sufficiency needs the score of a whole image, but --tiles cuts it"
        raise ConfigurationError(f"{problem}: drop one of them")
    if model.scores == RAW:
        problem = f"--sufficiency halves probabilities, but the scores of {model.name} are raw"
        raise ConfigurationError(f"{problem}: add --scores softmax or sigmoid")


def _check_option(option: str, model: LoadedModel) -> None:
    """Raise ConfigurationError if other tasks have an option, and that of the network does not."""
    options = REGISTRY[model.task].options
    networks = [task.networks for task in REGISTRY.values() if option in task.options]
    if not networks or option in options:
        return
    hint = "drop it"
    if option == "above" and "score" in options:
        hint = "use --score, or drop it"
    problem = f"--{option.replace('_', '-')} works only with {' and '.join(networks)}"
    raise ConfigurationError(f"{problem}, but {model.name} is for {model.task}: {hint}")
