"""The commands of ``eb-saliency benchmark``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from ebcli.cli.benchmark_session import Session, benchmark_command
from ebcli.cli.parameters import plain_option
from ebcli.models.keywords import BASELINES

if TYPE_CHECKING:
    from ebcli.evaluate.mosaics import Mosaics
    from ebcli.evaluate.runner import Benchmark

EPILOG = """
Each test is a command with its own options: see, for example, eb-saliency benchmark grid --help. Options can also be
set by environment variables: --layer of grid by EB_SALIENCY_BENCHMARK_GRID_LAYER.

Measurements are saved in the directory of --output, one line per image. Repeat a command to resume an interrupted run.

Exit status: 0 success, 1 some images failed and are missing from the table, 2 wrong usage or unwritable files, 130
interrupted (143 by SIGTERM, 129 by SIGHUP).
"""

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)

_images = click.argument("images", type=_FOLDER)
_labels = plain_option(
    "--labels",
    metavar="FILE",
    type=_FILE,
    show_default="predicted classes",
    help="CSV file of classes: a path relative to IMAGES, a comma, an index or name.",
)
_baselines = plain_option(
    "--baseline",
    "baselines",
    type=click.Choice(BASELINES),
    multiple=True,
    default=BASELINES,
    help="Replace removed pixels by the blurred image, its mean color, or noise. Repeatable.",
)
_steps = plain_option("--steps", type=click.IntRange(min=1), default=32, help="Replace the pixels in this many steps.")


@click.group(
    context_settings={
        "auto_envvar_prefix": "EB_SALIENCY_BENCHMARK",
        "help_option_names": ["-h", "--help"],
        "show_default": True,
        "max_content_width": 110,
    },
    epilog=EPILOG,
)
def benchmark() -> None:
    """Measure the faithfulness of saliency maps, of Excitation Backprop and other methods."""


@benchmark.command()
@plain_option("--voc", metavar="DIR", type=_FOLDER, help="Use PASCAL VOC: the directory that contains VOCdevkit.")
@plain_option("--year", default="2007", help="Select VOC's year.")
@plain_option("--split", default="test", help="Select VOC's list of images in ImageSets/Main.")
@plain_option("--coco", metavar="DIR", type=_FOLDER, help="Use COCO: the directory of images, such as val2014.")
@plain_option(
    "--annotations", metavar="FILE", type=_FILE, help="Annotations for --coco, such as instances_val2014.json."
)
@plain_option("--skip-flagged", is_flag=True, help="Ignore objects that VOC flags as difficult, and COCO's crowds.")
@plain_option(
    "--tolerance", type=click.IntRange(min=0), default=15, help="Accept hits this many pixels off the object."
)
@benchmark_command
def pointing(
    session: Session,
    voc: Path | None,
    year: str,
    split: str,
    coco: Path | None,
    annotations: Path | None,
    skip_flagged: bool,
    tolerance: int,
) -> Benchmark:
    """Pointing game: does a map's maximum lie on the object?

    Zhang et al., ECCV 2016. Needs VOC or COCO, and a network with one output for each of their classes. If VOC's
    annotations use other class names, pass --class-names.
    """
    from ebcli.evaluate.data_sets import AnnotatedImages, Coco, Voc
    from ebcli.evaluate.localization import pointing as test

    data: AnnotatedImages
    if voc is not None and coco is None:
        data = Voc(voc, year, split, session.annotated_names(), skip_flagged)
    elif coco is not None and voc is None and annotations is not None:
        data = Coco(coco, annotations, skip_flagged)
    else:
        raise click.UsageError("pass either --voc DIR, or --coco DIR and --annotations FILE")
    return test(session.model, session.sampled(data), tolerance)


def _mosaic_command(prepare: Callable[..., Benchmark]) -> None:
    """Add a command that makes mosaics, and prepares a test of them."""

    @benchmark.command(prepare.__name__, help=prepare.__doc__)
    @_images
    @_labels
    @plain_option("-n", "--size", "n", type=click.IntRange(min=2), default=2, help="Put N x N images in a mosaic.")
    @plain_option("--mosaics", type=click.IntRange(min=1), default=100, help="Number of mosaics.")
    @plain_option(
        "--confidence",
        type=click.FloatRange(0, 1),
        default=0.5,
        help="Use images recognized with at least this probability.",
    )
    @plain_option(
        "--cell",
        metavar="PIXELS",
        type=click.IntRange(min=1),
        show_default="the model's crop",
        help="Side of each image.",
    )
    @benchmark_command
    def command(
        session: Session, images: Path, labels: Path | None, n: int, mosaics: int, confidence: float, cell: int | None
    ) -> Benchmark:
        from ebcli.evaluate.mosaics import Mosaics, classify_images

        found, seed = session.images(images, labels), session.options["seed"]
        classified = session.measure(classify_images(session.model, found))
        options: dict[str, Any] = {"n": n, "confidence": confidence, "cell": cell, "seed": seed}
        return prepare(Mosaics(session.model, found, classified, mosaics, **options))


@_mosaic_command
def grid(mosaics: Mosaics) -> Benchmark:
    """Grid pointing game: does a map of a mosaic highlight the right image?

    Böhle et al., CVPR 2021. Mosaics are made of the images in the directory IMAGES.
    """
    from ebcli.evaluate.mosaics import grid as test

    return test(mosaics)


@_mosaic_command
def naming(mosaics: Mosaics) -> Benchmark:
    """Naming game: is the class with the most evidence at a place that of the image there?

    The 20 most likely classes are compared, as in --style atlas. Mosaics are made of the images in the directory
    IMAGES.
    """
    from ebcli.evaluate.mosaics import naming as test

    return test(mosaics)


def _perturbation(kind: Literal["deletion", "insertion"], question: str) -> None:
    """Add a command."""
    about = f"{question}\n\nPetsiuk et al., BMVC 2018. Uses the images in the directory IMAGES."

    @benchmark.command(kind, help=f"{kind.capitalize()}: {about}")
    @_images
    @_labels
    @_baselines
    @_steps
    @benchmark_command
    def command(
        session: Session, images: Path, labels: Path | None, baselines: tuple[str, ...], steps: int
    ) -> Benchmark:
        from ebcli.evaluate.perturbation import perturbation

        return perturbation(kind, session.model, session.images(images, labels), baselines, steps)


_perturbation("deletion", "how fast does the class probability fall as highlighted pixels are removed?")
_perturbation("insertion", "how fast does the class probability rise as highlighted pixels are added?")


@benchmark.command()
@_images
@_labels
@plain_option("--steps", type=click.IntRange(min=1), default=8, help="Compare maps this many times on the way down.")
@benchmark_command
def sanity(session: Session, images: Path, labels: Path | None, steps: int) -> Benchmark:
    """Sanity check: do maps change as the parameters are shuffled from the classifier down?

    Adebayo et al., NeurIPS 2018. Uses the images in the directory IMAGES.
    """
    from ebcli.evaluate.randomization import sanity as test

    return test(session.model, session.images(images, labels), steps)


@benchmark.command()
@_images
@click.argument("annotations", type=_FOLDER)
@plain_option(
    "--alpha",
    "alphas",
    type=click.FloatRange(min=0),
    multiple=True,
    default=(1.0,),
    help="Draw the box around values above this many times the map's mean. Repeatable.",
)
@benchmark_command
def localize(session: Session, images: Path, annotations: Path, alphas: tuple[float, ...]) -> Benchmark:
    """Localization: does the box around a map's bright region match the object's box?

    Zhang et al., ECCV 2016. Uses the images in the directory IMAGES; the boxes of NAME.JPEG are in NAME.xml in the
    directory ANNOTATIONS, in the format of VOC and ImageNet. If the annotations use other class names than the network,
    pass --class-names.
    """
    from ebcli.evaluate.localization import localize as test

    return test(session.model, session.images(images), annotations, session.annotated_names(), alphas)
