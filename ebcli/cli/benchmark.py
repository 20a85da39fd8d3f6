"""The commands of ``eb-saliency benchmark``."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click
from click import Argument, FloatRange, IntRange

from ebcli.cli.click_types import MethodName
from ebcli.cli.commands import WITHOUT_ENVIRONMENT, alter_option, command
from ebcli.cli.console import SOME_FAILED, is_quiet, say, write_out
from ebcli.cli.options import CONTEXT, OPTIONS, Options, in_section, option
from ebcli.errors import ConfigurationError, EbcliError, ImageError
from ebcli.methods.table import CHANCE
from ebcli.models.keywords import BASELINES, WHOLE
from ebcli.run.plan import RunPlan
from ebcli.run.plan_parts import Names

if TYPE_CHECKING:
    from ebcli.evaluate.benchmark import Benchmark, Row
    from ebcli.evaluate.data_sets import AnnotatedImages, Images, LabeledImages
    from ebcli.evaluate.localization import Mosaics

EPILOG = """
Each test is a command with its own options: see, for example, eb-saliency benchmark grid --help. Options
can also be set by environment variables: --layer of grid by EB_SALIENCY_BENCHMARK_GRID_LAYER.

Measurements are saved in the directory of --output, one line per image. Repeat a command to resume an
interrupted run.

Exit status: 0 success, 1 some images failed and are missing from the table, 2 wrong usage or unwritable
files, 130 interrupted (143 by SIGTERM, 129 by SIGHUP).
"""

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
_COUNT = IntRange(min=1)
_SHARE = FloatRange(0, 1)


@click.group(context_settings=CONTEXT | {"auto_envvar_prefix": "EB_SALIENCY_BENCHMARK"}, epilog=EPILOG)
def benchmark() -> None:
    """Measure the faithfulness of saliency maps, of Excitation Backprop and other methods."""


_test_option = partial(option, "Test")
_IMAGES = Argument(["images"], type=_FOLDER)
_COMMON_OPTIONS = (
    alter_option(
        "layer",
        metavar="NAME",
        show_default="the model's default",
        help="Measure maps at this layer; input means the pixels. best measures each method at its best layer: of the "
        "other layers named, or of all blocks. Half of the photos choose it, and the others measure. Repeatable.",
    ),
    option(
        "Map",
        "--method",
        "Measure maps of this method; random and center are chance. Repeatable.",
        type=MethodName(CHANCE),
        default=("contrastive",),
    ),
    OPTIONS["device"],
    alter_option(
        "output",
        metavar="DIR",
        default=Path("benchmark"),
        help="Save measurements in this directory, and resume from it.",
    ),
    _test_option("--limit", "Use a random sample of this size. [default: all]", type=_COUNT),
    _test_option("--seed", "Seed for random choices.", type=IntRange(min=0), default=0),
    alter_option("as_json", help="Print the rows of the table as JSON, one object per line."),
)
_LABELS = _test_option(
    "--labels FILE",
    "CSV file of classes: a path relative to IMAGES, a comma, an index or name. [default: predicted classes]",
    type=_FILE,
)

T = TypeVar("T", bound="Images")


class Session:
    """The model and the measurements of one command.

    Args:
        options: its options by name.
    """

    def __init__(self, options: Options) -> None:
        from ebcli.evaluate.benchmark import ModelUnderTest

        if options["fit"] == WHOLE:
            raise ConfigurationError("benchmarks need images of one size: choose --fit crop, squash or pad")
        values = {name: options[name] for name in in_section("Model")}
        model = RunPlan.from_values(usual_fit=None, images=(Path("photo"),), **values).model
        self.model = ModelUnderTest(model, options["layer"], options["method"], options["device"])
        self.options = options
        self.num_failed = 0

    def measure(self, test: Benchmark) -> list[Row]:
        """Run a test and return its rows; units that fail are reported on stderr and counted.

        Raises:
            EbcliError: no unit gave a result.
        """
        from ebcli.evaluate.benchmark import run_benchmark

        def report_failure(unit: str, error: ImageError) -> None:
            self.num_failed += 1
            say(f"{unit}: {error}")

        rows = run_benchmark(test, self.options["output"], report_failure, is_quiet())
        if not rows:
            raise EbcliError(f"nothing was measured: none of {len(test.units)} {test.unit}s gave a result")
        return rows

    def sample(self, images: T) -> T:
        """A data set with a random sample of at most ``--limit`` keys, in their order."""
        import numpy as np

        limit: int | None = self.options["limit"]
        if limit is not None and limit < len(images.keys):
            generator = np.random.default_rng(self.options["seed"])
            indices = generator.choice(len(images.keys), limit, replace=False)
            images.keys = [images.keys[index] for index in sorted(indices)]
        return images

    def images(self, names: Collection[str] | None = None) -> LabeledImages:
        """A sample of the images in the directory IMAGES.

        Args:
            names: take these images only, by their paths relative to IMAGES.

        Raises:
            ConfigurationError: none of them exists.
        """
        from ebcli.evaluate.data_sets import LabeledImages

        model = self.model
        options = self.options
        folder = options["images"]
        images = LabeledImages(folder, options.get("labels"), model.loaded.categories, model.num_classes)
        if names is not None:
            images.keys = [key for key in images.keys if key in names]
            if not images.keys:
                raise ConfigurationError(
                    f"the annotations list no image in '{folder}', such as '{min(names)}'"
                )
        return self.sample(images)

    def annotated_names(self) -> list[str] | None:
        """The names of ``--class-names`` as annotations spell them; None without that option."""
        from ebcli.evaluate.data_sets import read_annotated_names

        path = self.options["class_names"]
        return path and read_annotated_names(path)


Prepare = Callable[..., "Benchmark"]  # of a session, and of options by name


def _test(
    *parameters: click.Parameter, name: str = "", text: str | None = None
) -> Callable[[Prepare], Prepare]:
    """Add a command: a function of a session that prepares a test; for the arguments, see ``command``."""

    def add(prepare: Prepare) -> Prepare:
        @command(
            name or prepare.__name__,
            *parameters,
            *_COMMON_OPTIONS,
            options=in_section("Model"),
            group=benchmark,
            context_settings=WITHOUT_ENVIRONMENT,
            text=text or prepare.__doc__,
        )
        def run_test(as_json: bool, **options: Any) -> int:
            from ebcli.evaluate.benchmark import table

            session = Session(options)
            try:
                test = prepare(session, **options)
                if session.model.finds_best_layer and test.choice is None:
                    raise ConfigurationError(f"--layer best does not work with {test.name}: name the layers")
                rows = test.summarize(session.measure(test))
            except KeyboardInterrupt:
                state = f"with measurements saved in '{options['output']}': repeat the command to resume"
                raise KeyboardInterrupt(state) from None
            write_out("\n".join(map(json.dumps, rows)) if as_json else table(rows))
            if not session.num_failed:
                return 0
            say(f"{session.num_failed} could not be measured")
            return SOME_FAILED

        return prepare

    return add


@_test(
    _test_option("--voc DIR", "Use PASCAL VOC 2007: the directory that contains VOCdevkit.", type=_FOLDER),
    _test_option("--coco DIR", "Use COCO: the directory of images, such as val2014.", type=_FOLDER),
    _test_option("--annotations FILE", "Annotations for --coco, such as instances_val2014.json.", type=_FILE),
)
def pointing(
    session: Session, voc: Path | None, coco: Path | None, annotations: Path | None, **_: Any
) -> Benchmark:
    """Pointing game: does a map's maximum lie on the object?

    Zhang et al., ECCV 2016. Needs VOC or COCO, and a network with one output for each of their classes. If VOC's
    annotations use other class names, pass --class-names.
    """
    from ebcli.evaluate.data_sets import Coco, Voc
    from ebcli.evaluate.localization import pointing as test

    data: AnnotatedImages
    if voc is not None and coco is None:
        data = Voc(voc, session.annotated_names())
    elif coco is not None and voc is None and annotations is not None:
        data = Coco(coco, annotations)
    else:
        raise click.UsageError("pass either --voc DIR, or --coco DIR and --annotations FILE")
    return test(session.model, session.sample(data))


_mosaics = partial(
    _test,
    _IMAGES,
    _LABELS,
    _test_option("-n --size", "Put N x N images in a mosaic.", type=IntRange(min=2), default=2),
    _test_option("--mosaics", "Number of mosaics.", type=_COUNT, default=100),
    _test_option(
        "--confidence", "Use images recognized with at least this probability.", type=_SHARE, default=0.5
    ),
    _test_option("--cell PIXELS", "Side of each image. [default: the model's crop]", type=_COUNT),
)


def _make_mosaics(session: Session, options: Options) -> Mosaics:
    from ebcli.evaluate.localization import Mosaics, classify_images

    images = session.images()
    classifications = session.measure(classify_images(session.model, images))
    arguments = {name: options[name] for name in ("size", "confidence", "cell", "seed")}
    return Mosaics(session.model, images, classifications, options["mosaics"], **arguments)


@_mosaics()
def grid(session: Session, **options: Any) -> Benchmark:
    """Grid pointing game: does a map of a mosaic highlight the right image?

    Böhle et al., CVPR 2021. Mosaics are made of the images in the directory IMAGES.
    """
    from ebcli.evaluate.localization import grid as test

    return test(_make_mosaics(session, options))


@_mosaics()
def naming(session: Session, **options: Any) -> Benchmark:
    """Naming game: does the class with the most evidence at a place name the image there?

    The 20 most likely classes are compared, as with --candidates photo. Mosaics are made of the images in the directory
    IMAGES.
    """
    from ebcli.evaluate.localization import naming as test

    return test(_make_mosaics(session, options))


def _perturbation(kind: Literal["deletion", "insertion"], question: str) -> None:
    """Add a command."""

    @_test(
        _IMAGES,
        _LABELS,
        _test_option(
            "--baseline",
            "Replace removed pixels by the blurred image, its mean color, or noise. Repeatable.",
            type=click.Choice(BASELINES),
            default=BASELINES,
        ),
        _test_option("--steps", "Replace the pixels in this many steps.", type=_COUNT, default=32),
        name=kind,
        text=f"{kind.capitalize()}: {question}\n\nPetsiuk et al., BMVC 2018. Uses the images in the directory IMAGES.",
    )
    def prepare(session: Session, baseline: Names, steps: int, **_: Any) -> Benchmark:
        from ebcli.evaluate.faithfulness import perturbation

        return perturbation(kind, session.model, session.images(), baseline, steps)


_perturbation("deletion", "how fast does the class probability fall as highlighted pixels are removed?")
_perturbation("insertion", "how fast does the class probability rise as highlighted pixels are added?")


@_test(
    _IMAGES,
    _LABELS,
    _test_option("--steps", "Compare maps this many times on the way down.", type=_COUNT, default=8),
)
def sanity(session: Session, steps: int, **_: Any) -> Benchmark:
    """Sanity check: do maps change as the parameters are shuffled from the classifier down?

    Adebayo et al., NeurIPS 2018. Uses the images in the directory IMAGES.
    """
    from ebcli.evaluate.faithfulness import sanity as test

    return test(session.model, session.images(), steps)


@_test(
    _IMAGES,
    Argument(["annotations"], type=click.Path(exists=True, path_type=Path)),
    _test_option(
        "--alpha",
        "Draw the box around values above this many times the map's mean. Repeatable.",
        type=FloatRange(min=0),
        default=(1.0,),
    ),
)
def localize(session: Session, annotations: Path, alpha: tuple[float, ...], **_: Any) -> Benchmark:
    """Localization: does a map cover the object?

    error: how often the box around a map's bright region misses the object's box, in percent (Zhang et al.,
    ECCV 2016). equal area: the share of a map's k strongest pixels that lie on an object of k pixels. best IoU: the
    intersection over union of the object and the pixels above the best threshold. Sharper maps gain nothing in these
    two. Their intervals are over photos.

    Uses the images in the directory IMAGES. ANNOTATIONS is a file in COCO's format (.json); or a CSV file of lines such
    as photo.jpg,tiger cat,LEFT,TOP,RIGHT,BOTTOM; or a directory with NAME.xml for NAME.JPEG, in the format of VOC and
    ImageNet. If the annotations use other class names than the network, pass --class-names.
    """
    from ebcli.evaluate.data_sets import read_boxes
    from ebcli.evaluate.localization import localize as test

    boxes = read_boxes(annotations)
    images = session.images(boxes.files)
    return test(session.model, images, annotations, boxes, session.annotated_names(), alpha)
