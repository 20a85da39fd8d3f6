"""The command line of ``eb-benchmark``: options -> a test."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from ebcli.cli.benchmark_session import Session, benchmark_command
from ebcli.evaluate.names import BASELINES
from ebcli.imports import DISTRIBUTION

if TYPE_CHECKING:
    from ebcli.evaluate.runner import Benchmark

EPILOG = """
Each test is a command; eb-benchmark grid --help, for example, tells its options. They can also be set in the
environment: --layer of grid as EB_BENCHMARK_GRID_LAYER.

What was measured is kept in the directory of --output, a line for each image. A run that was cut off goes on there
when the same command is given again.

Exit status: 0 all measured, 1 some images failed and the table is of the rest, 2 wrong usage or files that cannot be
written, 130 interrupted.
"""

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)

_images = click.argument("images", type=_FOLDER)
_labels = click.option(
    "--labels",
    metavar="FILE",
    type=_FILE,
    show_default="what the network thinks",
    help="The images' classes: lines of a path below IMAGES, a comma, and an index or name.",
)
_baselines = click.option(
    "--baseline",
    "baselines",
    type=click.Choice(BASELINES),
    multiple=True,
    default=BASELINES,
    help="What is seen where the image is not: itself blurred, its mean colour, or noise. Can be repeated.",
)
_steps = click.option(
    "--steps", type=click.IntRange(min=1), default=32, help="In how many parts the pixels are exchanged."
)


@click.group(
    context_settings={
        "auto_envvar_prefix": "EB_BENCHMARK",
        "help_option_names": ["-h", "--help"],
        "show_default": True,
        "max_content_width": 110,
    },
    epilog=EPILOG,
)
@click.version_option(package_name=DISTRIBUTION, prog_name="eb-benchmark", message="%(prog)s %(version)s")
def main() -> None:
    """Measure whether saliency maps tell the truth: those of Excitation Backprop, and others beside them."""


@main.command()
@click.option("--voc", metavar="DIR", type=_FOLDER, help="A directory that holds VOCdevkit.")
@click.option("--year", default="2007", help="VOC's year.")
@click.option("--split", default="test", help="VOC's list of images, in ImageSets/Main.")
@click.option("--coco", metavar="DIR", type=_FOLDER, help="A directory of COCO's images, such as val2014.")
@click.option("--annotations", metavar="FILE", type=_FILE, help="Theirs, such as instances_val2014.json.")
@click.option("--skip-flagged", is_flag=True, help="Leave out the objects that VOC calls difficult, and COCO's crowds.")
@click.option("--tolerance", type=click.IntRange(min=0), default=15, help="How far off a hit may be, in pixels.")
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
    """The pointing game: does a map's maximum lie on the object?

    Zhang et al., ECCV 2016. On the images of VOC or COCO, with a network that has an output for each of their classes;
    VOC's names of them are in --classes if they are not its usual ones.
    """
    from ebcli.evaluate.annotations import AnnotatedImages, Coco, Voc, read_classes
    from ebcli.evaluate.pointing import pointing as test

    data: AnnotatedImages
    if voc is not None and coco is None:
        data = Voc(voc, year, split, read_classes(session.classes) if session.classes else None, skip_flagged)
    elif coco is not None and voc is None and annotations is not None:
        data = Coco(coco, annotations, skip_flagged)
    else:
        raise click.UsageError("give either --voc DIR, or --coco DIR and --annotations FILE")
    return test(session.subject, data, session.drawn(data.keys), tolerance)


@main.command()
@_images
@_labels
@click.option("-n", "--size", "n", type=click.IntRange(min=2), default=2, help="Images in a row of a mosaic.")
@click.option("--mosaics", type=click.IntRange(min=1), default=100, help="How many are made.")
@click.option(
    "--confidence", type=click.FloatRange(0, 1), default=0.5, help="Only images recognised with this probability."
)
@click.option(
    "--cell", metavar="PIXELS", type=click.IntRange(min=1), show_default="the model's own", help="An image's side."
)
@benchmark_command
def grid(
    session: Session, images: Path, labels: Path | None, n: int, mosaics: int, confidence: float, cell: int | None
) -> Benchmark:
    """The grid pointing game: is a map in the right part of a mosaic?

    Böhle et al., CVPR 2021. The mosaics are made of the photos below IMAGES.
    """
    from ebcli.evaluate.grid import classify_images
    from ebcli.evaluate.grid import grid as test

    pictures, keys = session.pictures(images, labels)
    surveyed = session.run_benchmark(classify_images(session.subject, pictures, keys))
    return test(session.subject, pictures, surveyed, n, mosaics, confidence, cell, session.seed)


def _perturbation(
    kind: Literal["deletion", "insertion"],
    session: Session,
    images: Path,
    labels: Path | None,
    baselines: tuple[str, ...],
    steps: int,
) -> Benchmark:
    from ebcli.evaluate.perturbation import perturbation as test

    return test(kind, session.subject, *session.pictures(images, labels), baselines, steps)


@main.command()
@_images
@_labels
@_baselines
@_steps
@benchmark_command
def deletion(session: Session, images: Path, labels: Path | None, baselines: tuple[str, ...], steps: int) -> Benchmark:
    """Deletion: what goes with what a map shows?

    Petsiuk et al., BMVC 2018. On the photos below IMAGES.
    """
    return _perturbation("deletion", session, images, labels, baselines, steps)


@main.command()
@_images
@_labels
@_baselines
@_steps
@benchmark_command
def insertion(session: Session, images: Path, labels: Path | None, baselines: tuple[str, ...], steps: int) -> Benchmark:
    """Insertion: what comes with what a map shows?

    Petsiuk et al., BMVC 2018. On the photos below IMAGES.
    """
    return _perturbation("insertion", session, images, labels, baselines, steps)


@main.command()
@_images
@_labels
@click.option("--steps", type=click.IntRange(min=1), default=8, help="How many times maps are compared on the way.")
@benchmark_command
def sanity(session: Session, images: Path, labels: Path | None, steps: int) -> Benchmark:
    """Parameter randomization: do maps notice?

    Adebayo et al., NeurIPS 2018. From the classifier down, on the photos below IMAGES.
    """
    from ebcli.evaluate.randomization import sanity as test

    return test(session.subject, *session.pictures(images, labels), steps)


@main.command()
@_images
@click.argument("annotations", type=_FOLDER)
@click.option(
    "--alpha",
    "alphas",
    type=click.FloatRange(min=0),
    multiple=True,
    default=(1.0,),
    help="The box is drawn around what exceeds this many times the map's mean. Can be repeated.",
)
@benchmark_command
def localize(session: Session, images: Path, annotations: Path, alphas: tuple[float, ...]) -> Benchmark:
    """Localization: is a map's box the object's?

    Zhang et al., ECCV 2016. On the photos below IMAGES; the boxes of NAME.JPEG are in NAME.xml below ANNOTATIONS, in
    the format of VOC and ImageNet. The names that these files use are in --classes if they are not the network's own.
    """
    from ebcli.evaluate.annotations import read_classes
    from ebcli.evaluate.localization import localize as test

    names = read_classes(session.classes) if session.classes else None
    return test(session.subject, *session.pictures(images), annotations, names, alphas)
