"""One run over many images, on this machine or on a Ray cluster."""

from collections.abc import Generator

from ebcli.files.directory import OutputFolder
from ebcli.files.images import decoding_memory
from ebcli.files.records import Record
from ebcli.files.sink import Sink
from ebcli.run.pipeline import Pipeline
from ebcli.run.plan import RunPlan
from ebcli.run.plan_text import as_settings
from ebcli.run.prepare import Run, prepare
from ebcli.workers import Workers, enough_for


def run(plan: RunPlan, sink: Sink | None = None) -> Run:
    """Check the plan and load what all images share; the images are worked on while ``results`` is iterated.

    Args:
        plan: the run.
        sink: where its results go; None for the output directory.

    Raises:
        ConfigurationError: the model, weights, layer, class, colormap or device does not exist or does not fit, or a
            result would replace a file that this program did not write.
        UnsupportedOpError: the network has operations without an excitation rule.
        OutputError: (also from ``results``) the output directory cannot be written to.
    """
    sink = sink or OutputFolder(plan.output.directory, plan.output.overwrite)
    if plan.execution.engine == "ray" and not plan.execution.dry_run:
        from ebcli.run.ray_driver import Cluster

        return Cluster(plan, sink).run
    work = prepare(plan, sink)
    work.results = _planned(work) if plan.execution.dry_run else _results(plan, work, sink)
    return work


def _planned(work: Run) -> Generator[Record]:
    for source in work.sources:
        is_image = work.stages.reader.accepts(source)
        yield work.stages.record(source, "planned" if is_image else "not an image")


def _results(plan: RunPlan, work: Run, sink: Sink) -> Generator[Record]:
    execution, sources = plan.execution, work.sources
    if not sources:
        return
    usual = enough_for(len(sources)) if execution.workers is None else execution.workers
    count = usual if work.explainer else 0
    with sink, Workers(count, execution.image_timeout, decoding_memory(plan.inputs.max_pixels)) as workers:
        sink.start(as_settings(plan) if plan.words is None else None)  # settings are those of the command
        pipeline = Pipeline(
            explainer=work.explainer,
            sink=sink,
            workers=workers,
            stages=work.stages,
            fail_fast=execution.fail_fast,
            stopping=work.stopping,
            recorded=work.recorded,
        )
        yield from pipeline.run(sources)
