"""What the commands of ``eb-saliency benchmark`` share: options, the model, and running a benchmark."""

from __future__ import annotations

import functools
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ebcli.cli.console import SOME_FAILED, note_environment, plain_errors, plain_warnings, put, say
from ebcli.cli.model_options import MODEL, with_options
from ebcli.cli.parameters import Method, Output, plain_option
from ebcli.errors import ConfigurationError, EbcliError, ImageError
from ebcli.models.keywords import METHODS, WHOLE
from ebcli.models.spec import ModelSpec, Preprocessing
from ebcli.run.plan import part_of

if TYPE_CHECKING:
    from ebcli.evaluate.data_sets import Images, LabeledImages
    from ebcli.evaluate.runner import Benchmark, Row

T = TypeVar("T", bound="Images")

_OPTIONS = (
    plain_option(
        "--layer",
        "layers",
        metavar="NAME",
        multiple=True,
        show_default="the model's default",
        help="Measure maps at this layer; input means the pixels. Repeatable.",
    ),
    plain_option(
        "--method",
        "methods",
        type=Method(METHODS),
        multiple=True,
        default=("contrastive",),
        help="Measure maps of this method. Repeatable.",
    ),
    plain_option(
        "--device", metavar="NAME", default="auto", help="Run on cpu, cuda, cuda:1, ...; auto uses a GPU if available."
    ),
    plain_option(
        "-o",
        "--output",
        type=Output(file_okay=False, path_type=Path),
        default=Path("benchmark"),
        help="Save measurements in this directory, and resume from it.",
    ),
    plain_option("--limit", type=click.IntRange(min=1), show_default="all", help="Use a random sample of this size."),
    plain_option("--seed", type=click.IntRange(min=0), default=0, help="Seed for random choices."),
    plain_option("--json", "as_json", is_flag=True, help="Print the rows of the table as JSON, one object per line."),
    plain_option("-q", "--quiet", is_flag=True, help="Hide the progress bar and warnings."),
    plain_option("-v", "--verbose", is_flag=True, help="Also name the environment variables that set options."),
    plain_option("--debug", is_flag=True, help="Show the traceback of an error."),
)


class Session:
    """The model and the measurements of one command.

    Args:
        options: the options that all commands share, by name.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        from ebcli.evaluate.model_under_test import ModelUnderTest

        preprocessing = part_of(Preprocessing, options)
        if preprocessing.fit == WHOLE:
            raise ConfigurationError("benchmarks need images of one size: choose --fit crop, squash or pad")
        spec = part_of(ModelSpec, options, preprocessing=preprocessing)
        self.model = ModelUnderTest(spec, options["layers"], options["methods"], options["device"])
        self.options, self.failed = options, 0

    def measure(self, benchmark: Benchmark) -> list[Row]:
        """Run a benchmark and return its rows; units that fail are reported on stderr and counted.

        Raises:
            EbcliError: no unit gave a result.
        """
        from ebcli.evaluate.runner import run_benchmark

        def failed(unit: str, error: ImageError) -> None:
            self.failed += 1
            say(f"{unit}: {error}")

        rows = run_benchmark(benchmark, self.options["output"], failed, self.options["quiet"])
        if not rows:
            raise EbcliError(f"nothing was measured: none of {len(benchmark.units)} {benchmark.unit}s gave a result")
        return rows

    def sampled(self, images: T) -> T:
        """A data set with a random sample of at most ``--limit`` keys, in their order."""
        import numpy as np

        limit: int | None = self.options["limit"]
        if limit is not None and limit < len(images.keys):
            chosen = np.random.default_rng(self.options["seed"]).choice(len(images.keys), limit, replace=False)
            images.keys = [images.keys[index] for index in sorted(chosen)]
        return images

    def images(self, folder: Path, labels: Path | None = None) -> LabeledImages:
        """A sample of the images in a directory."""
        from ebcli.evaluate.data_sets import LabeledImages

        return self.sampled(LabeledImages(folder, labels, self.model.loaded.categories, self.model.num_classes))

    def annotated_names(self) -> list[str] | None:
        """The names of ``--class-names`` as annotations spell them; None without that option."""
        from ebcli.evaluate.data_sets import read_annotated_names

        path: Path | None = self.options["class_names"]
        return None if path is None else read_annotated_names(path)


def benchmark_command(prepare: Callable[..., Benchmark]) -> Callable[..., None]:
    """Turn a function that takes a ``Session`` and its own options and returns a benchmark into a command."""

    own_names = inspect.signature(prepare).parameters

    @functools.wraps(prepare)
    def command(**options: Any) -> None:
        own = {name: options.pop(name) for name in own_names if name in options}
        with plain_errors(options["debug"]), plain_warnings(options["quiet"]):
            from ebcli.evaluate.runner import table

            note_environment()
            session = Session(options)
            benchmark = prepare(session, **own)
            try:
                rows = benchmark.summarize(session.measure(benchmark))
            except KeyboardInterrupt:
                saved = f"with measurements saved in '{options['output']}': repeat the command to resume"
                raise KeyboardInterrupt(saved) from None
            put("\n".join(map(json.dumps, rows)) if options["as_json"] else table(rows))
            if session.failed:
                say(f"{session.failed} could not be measured")
                sys.exit(SOME_FAILED)

    return with_options((*MODEL, *_OPTIONS))(command)
