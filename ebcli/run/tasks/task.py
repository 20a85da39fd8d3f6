"""What a task is: how the output of a network becomes the subjects of maps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ebcli.datatypes.explanation import Box, Explanation, Subject
from ebcli.drawing.style import ATLAS
from ebcli.errors import ConfigurationError
from ebcli.models import LoadedModel
from ebcli.models.keywords import DETECTION, OWN_TASKS, RAW, TASKS
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
    """

    network: NetworkDescription
    maps: MapOptions
    _: KW_ONLY
    labeled: bool = False
    label: int | None = None
    size: tuple[int, int] = (0, 0)
    place: Box = Box(0, 0, 0, 0)  # noqa: RUF009 - it is frozen
    words: WordOptions | None = None

    def subject(self, index: int, score: float, **fields: Any) -> Subject:
        """A subject of a class; for the other arguments, see ``Subject``."""
        return Subject(index, self.network.loaded.category(index), score, **fields)


@dataclass(frozen=True)
class Task:
    """A task.

    Attributes:
        subjects: what is explained in an image, in order, given what the network returns for it: scores (num_classes,)
            or (..., num_classes), unless there is a ``run``.
        networks: what networks for the task are called, for messages.
        options: the options on maps that only some tasks have, and of these ``labels``.
        run: runs the network once more on inputs (B, C, ...), given what is asked of each image, and returns for each
            what ``subjects`` needs.
        place: the rectangle of an image that its maps cover; by default, as the preprocessing tells.
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
    options: frozenset[str] = frozenset()
    run: Callable[[Tensor, Sequence[ImageRequest]], Sequence[Any]] | None = None
    place: Callable[[ImageRequest], Box] = lambda request: request.network.loaded.transforms.place(request.size)
    width: Callable[[ImageRequest], int] = lambda request: 1 if request.network.against else _WIDTH
    in_batches: bool = False
    joint: bool | None = None
    score: Callable[[Any, Subject], float] = lambda _output, subject: subject.score
    layer: str | None = None
    explain: Callable[[NetworkInput, ImageRequest], Explanation] | None = None


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


def check_options(plan: RunPlan, loaded: LoadedModel) -> None:
    """Raise ConfigurationError if the plan has options that the network's task does not have."""
    task = REGISTRY[loaded.task]
    defaults = MapOptions()
    for option, field in values_of(MapOptions).items():
        value = getattr(plan.maps, field.name)
        if value != getattr(defaults, field.name):
            _check_option("box" if isinstance(value, Box) else option, loaded)
    if plan.inputs.labels is not None:
        _check_option("labels", loaded)
    spec = loaded.transforms
    is_image = spec.axes == "HW"
    style = plan.style.name
    dtype = plan.execution.dtype
    sufficiency = plan.maps.sufficiency
    for_task = f"but {loaded.name} is for {loaded.task if spec.depth is None else 'volumes'}: drop it"
    problems = {
        f"--annotations marks regions of images, {for_task}": plan.output.annotations and not is_image,
        f"--compare-with compares maps of images, {for_task}": plan.maps.beside and spec.depth is not None,
        f"--style atlas or --format html compares the classes of images, {for_task}": style == ATLAS
        and not ("at" in task.options and is_image),
        f"--sufficiency blurs parts of images, {for_task}": sufficiency and not is_image,
        f"--style mask needs transparency, which videos lack, {for_task}": style == "mask" and spec.frames is not None,
        f"--tiles works only with classifiers, {for_task}": spec.tiles and not task.in_batches,
        "--sufficiency needs the score of a whole image, but --tiles cuts it: drop one of them": sufficiency
        and spec.tiles,
        f"--sufficiency halves probabilities, but the scores of {loaded.name} are raw: add --scores softmax or "
        "sigmoid": sufficiency and loaded.scores == RAW,
        f"dtype {dtype} has no non-maximum suppression, {for_task}": loaded.task == DETECTION and dtype != "float32",
    }
    for sentence, is_refused in problems.items():
        if is_refused:
            raise ConfigurationError(sentence)


def _check_option(option: str, loaded: LoadedModel) -> None:
    """Raise ConfigurationError if other tasks have an option, and that of the network does not."""
    options = REGISTRY[loaded.task].options
    networks = [task.networks for task in REGISTRY.values() if option in task.options]
    if not networks or option in options:
        return
    flag = option.replace("_", "-")
    hint = "drop it"
    if option == "box":
        flag = "where X,Y,W,H"
    elif option == "above" and "score" in options:
        hint = "use --score, or drop it"
    problem = f"{loaded.name} is for {loaded.task}: {hint}"
    raise ConfigurationError(f"--{flag} works only with {', '.join(networks)}, but {problem}")
