"""The options of ``eb-saliency``. Imports neither torch nor torchvision."""

from functools import partial
from pathlib import Path

import click

from ebcli.cli.map_options import MAP
from ebcli.cli.model_options import MODEL, PATH, section, with_options
from ebcli.cli.parameters import (
    SHARD,
    THRESHOLD,
    Limit,
    Output,
    SectionOption,
    complete_colormap,
    complete_directory,
    show_common_options,
)
from ebcli.cli.settings import PRESETS, use_settings
from ebcli.drawing.style import ATLAS, STYLES, DrawingStyle
from ebcli.files.frame_ranges import ClipOptions
from ebcli.files.remote import RemoteOptions
from ebcli.run.plan_parts import ANNOTATIONS, DTYPES, ENGINES, FORMATS, ExecutionOptions, OutputOptions

_input, _output, _appearance = map(section, ("Input", "Output", "Appearance"))
_resuming, _performance = map(section, ("Resuming", "Performance"))
_cluster, _information = map(section, ("Cluster", "Information"))
_limit = partial(click.option, cls=Limit, section="Settings, in files and the environment only")

CONTEXT = {"auto_envvar_prefix": "EB_SALIENCY", "show_default": True, "max_content_width": 110}
SALIENCY = (
    _input(
        "--config",
        common=True,
        metavar="FILE",
        type=PATH,
        is_eager=True,
        expose_value=False,
        callback=use_settings,
        help="Read options from this TOML file, such as a run's settings.toml.",
    ),
    _input(
        "--preset",
        type=click.Choice([*PRESETS]),
        is_eager=True,
        expose_value=False,
        callback=use_settings,
        help="Apply a set of options; --preset NAME --help lists them.",
    ),
    _input(
        "--from-file",
        metavar="FILE",
        type=click.File("rb"),
        help="Also read paths from FILE, one per line; - is stdin.",
    ),
    _input("-0", "--null", is_flag=True, help="End paths in --from-file and printed ones with NUL, as find -print0."),
    _input(
        "--include",
        metavar="GLOB",
        multiple=True,
        show_default="all",
        help="Only use files whose name, directory or trailing path matches GLOB. Repeatable.",
    ),
    _input("--exclude", metavar="GLOB", multiple=True, show_default="none", help="Skip files that match GLOB."),
    _input(
        "--labels",
        common=True,
        metavar="FILE|folders",
        type=PATH,
        help="Compare with true classes: a CSV file of file,class, or folders named after classes.",
    ),
    _input(
        "--shard",
        metavar="I/N",
        type=SHARD,
        show_default="from RANK and WORLD_SIZE, or all",
        help="Only process the I-th of N shards, counted from 1.",
    ),
    _input("--every", metavar="N", default=ClipOptions.every, help="Videos: explain every N-th clip."),
    _input("--start", metavar="SECONDS", default=ClipOptions.start, help="Videos: start the first clip here."),
    _input(
        "--duration",
        metavar="SECONDS",
        type=float,
        show_default="to the end",
        help="Videos: explain this many seconds.",
    ),
    *MODEL,
    *MAP,
    _output(
        "-o",
        "--output",
        common=True,
        metavar="PATH",
        type=Output(path_type=Path),
        default=OutputOptions.directory,
        shell_complete=complete_directory,
        help="Output directory, or a .png, .jpg, .webp or .mp4 file for a single picture or video, a .pdf or .svg "
        "file for a single figure, or an .html file for a page; - for stdout.",
    ),
    _output(
        "--format",
        type=click.Choice(FORMATS, case_sensitive=False),
        default=OutputOptions.format,
        help="Picture format; auto is jpg for JPEG photos, else png. Videos are MP4, or WebP with webp. pdf and "
        "svg are for --panel; html is an interactive page.",
    ),
    _output(
        "--max-side",
        metavar="PIXELS",
        type=int,
        show_default="as large as the image",
        help="Reduce photos to this longest side before drawing; what the network sees stays the same.",
    ),
    _output("--raw", is_flag=True, help="Also write the signed relevance to a compressed .npz file."),
    _output("--panel", common=True, is_flag=True, help="Draw one figure per image: the photo and all its maps."),
    _output(
        "--interactive",
        is_flag=True,
        help="Write one page per image that opens from disk: pointing at a place ranks the classes there. The same as "
        "--format html.",
    ),
    _output("--report", common=True, is_flag=True, help="Also write a gallery page, report/index.html."),
    _output(
        "--annotations",
        type=click.Choice(ANNOTATIONS),
        help="Also write a box per map to annotations.json, in COCO's format; masks have polygons, too. heatmaps "
        "writes all maps to fiftyone/, a dataset of FiftyOne, and implies --raw.",
    ),
    _output(
        "--threshold",
        metavar="[max:|mass:]SHARE",
        type=THRESHOLD,
        default="max:0.5",
        help="Region for boxes and masks: above this share of the maximum, or the smallest region that holds this "
        "share of the mass.",
    ),
    _output(
        "--records",
        metavar="FILE",
        type=PATH,
        help="Also write a table with a row per map, to a .csv or .parquet file.",
    ),
    _output("--json", "as_json", is_flag=True, help="Print one JSON record per image instead of paths."),
    _output("--open", "show", is_flag=True, help="Open the gallery page or the first picture when the run is done."),
    _appearance(
        "--style",
        common=True,
        type=click.Choice((*STYLES, ATLAS), case_sensitive=False),
        default=DrawingStyle.name,
        help="Drawing style; atlas is one figure of the regions in which each class has the most evidence.",
    ),
    _appearance(
        "--cmap",
        metavar="NAME",
        shell_complete=complete_colormap,
        show_default="violet for overlays; jet for --style paper; otherwise inferno, or vanimo_r if signed",
        help="Use this matplotlib colormap.",
    ),
    _appearance(
        "--alpha", default=DrawingStyle.alpha, help="Set an overlay's opacity at the upper end of the scale, 0 to 1."
    ),
    _appearance(
        "--signed/--unsigned",
        default=None,
        show_default="signed with --against",
        help="Draw negative values, too, on a symmetric scale.",
    ),
    _appearance("--caption", is_flag=True, help="Add class, score and color scale in a strip below each picture."),
    _appearance(
        "--cell-size",
        metavar="PIXELS",
        type=int,
        show_default="3 inches",
        help="Panels: size of each picture, along its longer side. Wide photos are stacked and get twice as long.",
    ),
    _appearance(
        "--dpi",
        default=DrawingStyle.dpi,
        help="Panels: pixels per inch; pictures, text and lines keep their size in print.",
    ),
    _appearance(
        "--scale",
        metavar="[LOW,]image|run|HIGH|P%",
        default=OutputOptions.scale,
        help="End the color scale at each map's own maximum, at that of all maps of the run, at the value HIGH, or at "
        "a percentile of each map's positive values. LOW is its lower end. 1 is the value of a uniform map.",
    ),
    _appearance("--cells", is_flag=True, help="Draw the layer's cells with hard edges, without interpolation."),
    _appearance(
        "--background",
        metavar="OPACITY",
        default=DrawingStyle.background,
        help="Keep this much of the photo visible where a mask's map is 0.",
    ),
    _resuming("--skip-existing", common=True, is_flag=True, help="Skip images whose results are up to date."),
    _resuming("--overwrite", is_flag=True, help="Also replace files that this program did not write."),
    _resuming("--dry-run", is_flag=True, help="List the images without processing them."),
    _resuming("--fail-fast", is_flag=True, help="Stop at the first image that fails."),
    _performance(
        "--batch-size",
        type=int,
        show_default="by device",
        help="Explain N images at a time; halved when memory runs out.",
    ),
    _performance(
        "-j",
        "--workers",
        type=int,
        show_default="up to one per CPU",
        help="Use N processes for decoding and drawing; with Ray, N workers that each load the network.",
    ),
    _performance(
        "--device",
        metavar="NAME",
        default=ExecutionOptions.device,
        help="Run the network on cpu, cuda, cuda:1, mps; auto prefers a GPU.",
    ),
    _performance(
        "--dtype",
        type=click.Choice(DTYPES),
        default=ExecutionOptions.dtype,
        help="Compute in this type; bfloat16 is faster on recent GPUs, but coarser.",
    ),
    _cluster(
        "--engine",
        type=click.Choice(ENGINES, case_sensitive=False),
        default=ExecutionOptions.engine,
        help="Run on this machine, or on the Ray cluster at RAY_ADDRESS.",
    ),
    _limit(
        "--gpus-per-worker",
        type=float,
        show_default="1 if there are any",
        help="GPUs per Ray worker; fractions share one.",
    ),
    _limit("--timeout", type=float, default=RemoteOptions.timeout, help="Seconds to wait for a server."),
    _limit("--retries", type=int, default=RemoteOptions.retries, help="How often a failed request is repeated."),
    _limit("--max-bytes", type=int, default=RemoteOptions.max_bytes, help="Largest file from URLs, tar files, stdin."),
    _limit(
        "--max-pixels",
        type=int,
        show_default="Pillow's own, 179 million",
        help="Largest image that is decoded.",
    ),
    _limit(
        "--image-timeout",
        type=float,
        default=ExecutionOptions.image_timeout,
        help="Seconds that decoding or drawing an image may take.",
    ),
    _information("-q", "--quiet", is_flag=True, help="Hide the progress bar and warnings."),
    _information("-v", "--verbose", common=True, is_flag=True, help="Also print settings, scores and lost mass."),
    _information("--debug", is_flag=True, help="Show the traceback of an error."),
    _information(
        "-h",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=show_common_options,
        help="Show the most common options and exit.",
    ),
)


def _by_name() -> dict[str, SectionOption]:
    command = click.command()(with_options(SALIENCY)(lambda: None))
    return {option.name or "": option for option in command.params if isinstance(option, SectionOption)}


OPTIONS = _by_name()  # of a run; other commands share some
