"""The one file that knows the order of the steps: load, find, leave out what is done, then work on the rest."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event

from ebcli.drawing.color_scale import DrawingStyle
from ebcli.files.directory import OutputFolder
from ebcli.files.naming import output_relpath
from ebcli.files.records import Record
from ebcli.files.sources import Source
from ebcli.gallery.page import PAGE, write_report
from ebcli.models import layers as model_layers
from ebcli.models import load_model
from ebcli.models.loading import UNTRAINED
from ebcli.run.pipeline import Pipeline
from ebcli.run.plan import RunPlan
from ebcli.run.prepare import Prepared, prepare
from ebcli.run.stages import is_image
from ebcli.run.workers import Workers, processors


@dataclass(frozen=True)
class Run:
    """A run that is ready to go.

    Attributes:
        model, weights, layer, device: what is used; several layers with commas between them.
        total: how many files are to be worked on, at most: some may turn out to be no images.
        already: the inputs that are left out because they are done.
        results: works on the files as it is read, and tells what became of each, in order; on a cluster, in the order
            in which they are done.
        stopping: set it, from a signal handler for example, and ``results`` ends after what has begun.
        vmax: where the scale of all maps ends, 1 being an even spread; None if each map has its own.
        page: the page of all results, which is there when ``results`` has come to its end; None for none.
    """

    model: str
    weights: str
    layer: str
    device: str
    total: int
    already: Collection[Path]
    results: Iterator[Record]
    stopping: Event = field(default_factory=Event)
    vmax: float | None = None
    page: Path | None = None


def run(plan: RunPlan) -> Run:
    """Check and load everything that all images share; the images are worked on as ``results`` is read.

    Raises:
        ConfigurationError: model, weights, layer, class, colormap or device do not exist or do not fit, or a
            file that this program did not write is in the way of a result.
        UnsupportedOpError: the network has operations that no rule explains.
        OutputError: (also from ``results``) the output directory cannot be written to.
    """
    stopping = Event()
    already: Collection[Path]
    if plan.engine == "ray" and not plan.dry_run:
        from ebcli.run.ray_driver import Cluster

        cluster = Cluster(plan)
        steps, device, total, already = cluster.steps, cluster.device, cluster.total, cluster.already
        results = cluster.results(stopping)
    else:
        prepared = prepare(plan)
        steps, device = prepared.steps, prepared.network.device
        total, already = len(prepared.rest), prepared.already
        results = _planned(prepared.rest, steps.common) if plan.dry_run else _results(plan, prepared, stopping)
    return Run(
        steps.common.model,
        steps.common.weights,
        steps.common.layer,
        device,
        total,
        already,
        results,
        stopping,
        steps.drawing.look.vmax,
        plan.output / PAGE if plan.report and not plan.dry_run else None,
    )


def report_only(plan: RunPlan) -> Path:
    """Write the page of what earlier runs left in the output directory, and compute nothing.

    Raises:
        ConfigurationError: there are no records, or the page would replace a file that this program did not write.
        OutputError: the output directory cannot be written to.
    """
    workers = plan.workers if plan.workers is not None else processors()
    return write_report(plan.output, DrawingStyle.of(plan), workers, plan.overwrite)


def layer_table(model: str, weights: str, crop: int | None) -> list[tuple[str, str, str, str]]:
    """The layers of a model as rows of text, below a row of headings: name, type, output shape and stride.

    Args:
        model, weights: as for ``load_model``.
        crop: the side of the input; None for the model's own.

    Raises:
        ConfigurationError: the model or the weights do not exist or do not fit together.
    """
    # the layers are the same whatever is in them, so nothing is downloaded for this
    loaded = load_model(model, UNTRAINED if weights == RunPlan.weights else weights, "cpu")
    rows = [("NAME", "TYPE", "OUTPUT", "STRIDE")]
    for layer in model_layers(loaded, crop):
        stride = "-" if layer.stride is None else f"{layer.stride:.3g}"
        rows.append((layer.name, layer.type, "x".join(map(str, layer.shape)), stride))
    return rows


def _planned(sources: Sequence[Source], common: Record) -> Iterator[Record]:
    for source in sources:
        record = replace(common, input=source.name, place=str(output_relpath(source.path)))
        yield record if is_image(source) else replace(record, status="not an image")


def _results(plan: RunPlan, prepared: Prepared, stopping: Event) -> Iterator[Record]:
    sources, history = prepared.rest, prepared.history
    if not sources and not history.written:  # else a killed run may have left something to clear away
        return
    count = _worker_count(plan, len(sources))
    with closing(OutputFolder(plan.output, history, plan.overwrite)) as folder, Workers(count) as workers:
        yield from Pipeline(prepared.network, folder, workers, prepared.steps, plan.fail_fast, stopping).run(sources)
    if plan.report:
        write_report(plan.output, prepared.steps.drawing.look, count, plan.overwrite)


def _worker_count(plan: RunPlan, images: int) -> int:
    if plan.workers is not None:
        return plan.workers
    # to start one takes as long as to draw a few photos, and a single image needs none
    return min(processors(), images // 2)
