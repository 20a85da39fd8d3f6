"""What all commands of ``eb-benchmark`` have in common: their options, and the way from a test to its table."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ebcli.cli.console import INTERRUPTED, SOME_FAILED, plain_errors, plain_warnings, say
from ebcli.cli.options import model_options
from ebcli.errors import EbcliError, ImageError
from ebcli.evaluate.names import METHODS

if TYPE_CHECKING:
    from ebcli.evaluate.labeled_images import LabeledImages
    from ebcli.evaluate.model_under_test import ModelUnderTest
    from ebcli.evaluate.runner import Benchmark, Row

_OPTIONS = (
    click.option(
        "--layer",
        "layers",
        metavar="NAME",
        multiple=True,
        show_default="the model's own",
        help="The layer whose maps are judged, or input for the pixels. Can be repeated.",
    ),
    click.option(
        "--method",
        "methods",
        type=click.Choice(METHODS),
        multiple=True,
        default=("contrastive",),
        help="How the maps are made. Can be repeated.",
    ),
    click.option("--device", metavar="NAME", default="auto", help="cpu, cuda, cuda:1, ...; auto takes a GPU."),
    click.option(
        "-o",
        "--output",
        type=click.Path(file_okay=False, path_type=Path),
        default=Path("benchmark"),
        help="The directory where measurements are kept, to go on with.",
    ),
    click.option(
        "--limit", type=click.IntRange(min=1), show_default="all", help="Only so many images, drawn at random."
    ),
    click.option("--seed", type=click.IntRange(min=0), default=0, help="Decides on what is drawn at random."),
    click.option("--json", "as_json", is_flag=True, help="Print the table's rows as JSON objects, one a line."),
    click.option("-q", "--quiet", is_flag=True, help="No progress bar and no warnings."),
    click.option("--debug", is_flag=True, help="Show the traceback of an error."),
)


class Session:
    """One command's network and measurements.

    Args:
        subject: what is examined.
        classes: the file with the names of its classes, where that was given.
        output: where measurements are kept.
        limit, seed: how many images are drawn, and how.
        quiet: no progress bar.
    """

    def __init__(
        self, subject: ModelUnderTest, classes: Path | None, output: Path, limit: int | None, seed: int, quiet: bool
    ) -> None:
        self.subject, self.classes, self.seed = subject, classes, seed
        self._output, self._limit, self._quiet = output, limit, quiet
        self.failed = 0

    def run_benchmark(self, test: Benchmark) -> list[Row]:
        """A test's rows; units that fail are told on stderr, and counted.

        Raises:
            EbcliError: nothing could be measured.
        """
        from ebcli.evaluate.runner import run_benchmark

        def failed(unit: str, error: ImageError) -> None:
            self.failed += 1
            say(f"{unit}: {error}")

        rows = run_benchmark(test, self._output, failed, self._quiet)
        if not rows:
            raise EbcliError(f"there is nothing to measure: no {test.unit} of {len(test.units)} gave a result")
        return rows

    def drawn(self, keys: Sequence[str]) -> list[str]:
        """At most ``--limit`` of the keys, in their order."""
        import numpy as np

        if self._limit is None or self._limit >= len(keys):
            return list(keys)
        chosen = np.random.default_rng(self.seed).choice(len(keys), self._limit, replace=False)
        return [keys[index] for index in sorted(chosen)]

    def pictures(self, images: Path, labels: Path | None = None) -> tuple[LabeledImages, list[str]]:
        """The images below a directory, and which of them to take."""
        from ebcli.evaluate.labeled_images import LabeledImages

        found = LabeledImages(images, labels, self.subject.loaded.categories, self.subject.num_classes)
        return found, self.drawn(found.keys)


def benchmark_command(prepare: Callable[..., Benchmark]) -> Callable[..., None]:
    """A command's function from one that takes a ``Session`` and its own options, and returns the test."""

    @functools.wraps(prepare)
    def command(
        *,
        model: str,
        weights: str,
        class_names: Path | None,
        resize: int | None,
        crop: int | None,
        mean: tuple[float, ...] | None,
        std: tuple[float, ...] | None,
        layers: Sequence[str],
        methods: Sequence[str],
        device: str,
        output: Path,
        limit: int | None,
        seed: int,
        as_json: bool,
        quiet: bool,
        debug: bool,
        **own: Any,
    ) -> None:
        with plain_errors(debug), plain_warnings(quiet):
            from ebcli.evaluate.model_under_test import ModelUnderTest
            from ebcli.evaluate.runner import table
            from ebcli.models import Preprocessing

            subject = ModelUnderTest(
                model,
                weights,
                layers,
                methods,
                device,
                classes=class_names,
                preprocessing=Preprocessing(resize, crop, mean, std),
            )
            session = Session(subject, class_names, output, limit, seed, quiet)
            test = prepare(session, **own)
            try:
                rows = test.summarise(session.run_benchmark(test))
            except KeyboardInterrupt:
                say(f"Interrupted. What was measured is kept in '{output}': the same command goes on from there")
                sys.exit(INTERRUPTED)
            click.echo("\n".join(map(json.dumps, rows)) if as_json else table(rows))
            if session.failed:
                say(f"{session.failed} could not be measured")
                sys.exit(SOME_FAILED)

    for option in reversed(_OPTIONS):
        command = option(command)
    return model_options(command)
