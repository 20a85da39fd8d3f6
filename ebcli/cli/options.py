"""The options of ``eb-saliency``, some of which its commands have, too. Imports neither torch nor torchvision."""

from functools import partial
from pathlib import Path
from typing import Any

import click

from ebcli.cli import parameters as kinds
from ebcli.cli.parameters import PATH, SectionOption, Setting
from ebcli.cli.settings import PRESETS, use_settings
from ebcli.drawing.style import ATLAS, STYLES
from ebcli.models.keywords import COMPARED_METHODS, FITS, SCORES
from ebcli.run.plan import FIELDS
from ebcli.run.plan_parts import ANNOTATIONS, DTYPES, ENGINES, FORMATS
from ebcli.run.plan_text import SETTINGS_ONLY

CONTEXT = {"auto_envvar_prefix": "EB_SALIENCY", "show_default": True, "max_content_width": 110}
_COMMON = {"target", "layer", "contrastive", "against", "top_k", "model", "weights", "config", "labels", "output"}
_COMMON |= {"panel", "report", "style", "skip_existing", "verbose"}  # which -h lists
_TYPES = {"int | None": int, "float | None": float, "Path | None": PATH, str(Path | None): PATH}  # of fields of plans


def option(section: str, names: str, text: str, **known: Any) -> SectionOption:
    """An option with a help text. If it is a value of plans, it has that default: False is a flag's, () of several.

    Its type follows from that value, too, unless it is given.
    """
    words = names.split()
    name = words[-1].partition("/")[0].lstrip("-").replace("-", "_")
    field = FIELDS.get(name)
    default, kind = getattr(field, "default", None), _TYPES.get(str(getattr(field, "type", None)))
    usual = {"is_flag": True} if default is False else {"multiple": True} if default == () else {"default": default}
    made = Setting if name in SETTINGS_ONLY else SectionOption
    return made(words, section=section, help=text, common=name in _COMMON, **{"type": kind} | usual | known)


_map, _model, _input, _output, _appearance = (
    partial(option, section) for section in ("Map", "Model", "Input", "Output", "Appearance")
)
_resuming, _performance, _information = (
    partial(option, section) for section in ("Resuming", "Performance", "Information")
)

_ALL = (
    _map(
        "-t --target",
        "Explain this class, by index or name. If several classes match, the likeliest is explained. With clip/NAME "
        "and open_clip/NAME, explain this text. Repeatable.",
        type=kinds.ClassName(),
        show_default="the most likely",
    ),
    _map(
        "-l --layer",
        "Compute the map at this layer. Use 'input' for the pixels, 'all' for one layer per resolution. Repeatable.",
        metavar="NAME|input|all",
        show_default="the model's own",
    ),
    _map("--contrastive/--marginal", "Show what distinguishes the class, or everything that excites it."),
    _map(
        "--against",
        "Compare the target with this class, by index or name: show what distinguishes the two. With --similar-to, "
        "compare with this picture. Repeatable.",
        type=kinds.ClassName(),
        show_default="the class's own classifier weights, negated",
    ),
    _map("--compare-with", "Also show this method's map in panels. Repeatable.", type=kinds.Method(COMPARED_METHODS)),
    _map(
        "--similar-to",
        "Explain the similarity to this picture, by the features below the classifier. Repeatable.",
        metavar="PICTURE",
        type=PATH,
    ),
    _map(
        "-k --top-k",
        "Explain the K most likely classes.",
        metavar="K",
        show_default="1; 20 for an atlas; all for detectors and segmentation",
    ),
    _map(
        "--above",
        "Explain every class that scores above SCORE. In segmentation, the score is the share of the image that the "
        "class covers.",
        metavar="SCORE",
        show_default="0.01 for segmentation",
    ),
    _map("--score", "Detectors: explain every detection that scores at least SCORE.", metavar="SCORE"),
    _map(
        "--where",
        "Segmentation: explain the class at this pixel, or in the bright pixels of the image FILE. Detectors: "
        "explain only the detection nearest to this box, in pixels.",
        metavar="X,Y|X,Y,W,H|FILE",
        type=kinds.Place(),
        show_default="every detection, or the whole segment",
    ),
    _map(
        "--at",
        "Print the classes that have evidence at this pixel of each image, with their shares. Implies --style atlas.",
        metavar="X,Y",
        type=kinds.PIXEL,
    ),
    _map(
        "--tiles",
        "Cut large images into overlapping squares, N across the shorter side, and join the squares' maps.",
        metavar="N",
        show_default="1 for images more than 2.5 times as long as wide; others are not cut",
    ),
    _map(
        "--sufficiency",
        "Test whether a small part of each image suffices to keep half of the score. The part that the first map shows "
        "is compared with a blob at the center, the map shuffled, and the gradient. Takes 23 more passes.",
    ),
    _map("--allow-unsupported", "Use ordinary gradients, with a warning, for operations without an excitation rule."),
    _model(
        "-m --model",
        "Model to load: a torchvision name, timm/NAME, hf/NAME, ultralytics/FILE.pt, clip/NAME or open_clip/NAME "
        "for texts, a network in FILE.onnx or FILE.pt2, or your own code as FILE.py:FACTORY or MODULE:FACTORY.",
        metavar="NAME",
        shell_complete=kinds.complete_model,
    ),
    _model(
        "--weights",
        "Load these weights: DEFAULT, another name, a checkpoint file, or none.",
        metavar="NAME|FILE|none",
        shell_complete=kinds.complete_weights,
    ),
    _model(
        "--class-names",
        "Read the class names from FILE, in output order: one per line, or JSON.",
        metavar="FILE",
        type=PATH,
        show_default="the model's own",
    ),
    _model("--resize", "Resize the shorter side to PIXELS.", metavar="PIXELS"),
    _model("--crop", "Crop the center to PIXELS.", metavar="PIXELS"),
    _model("--depth", "Resize volumes to N slices.", metavar="N"),
    _model(
        "--mean",
        "Subtract this mean from pixels of 0 to 1: one number, or one for each channel.",
        metavar="X[,X...]",
        type=kinds.NUMBERS,
    ),
    _model("--std", "Divide pixels by this standard deviation.", metavar="X[,X...]", type=kinds.NUMBERS),
    _model(
        "--channels",
        "Give the network these channels of an array or TIFF, from 1.",
        metavar="N[,N...]",
        type=kinds.INTEGERS,
    ),
    _model(
        "--bands",
        "Show these channels in pictures: one, or red, green and blue.",
        metavar="N[,N,N]",
        type=kinds.INTEGERS,
    ),
    _model(
        "--range",
        "Scale arrays, TIFF and medical images: LOW becomes 0, and HIGH becomes 1.",
        metavar="LOW,HIGH",
        type=kinds.NUMBERS,
    ),
    _model(
        "--fit",
        "Fit the image to the network: whole keeps the whole image and its aspect ratio, crop cuts out the "
        "central square, squash distorts it to a square, pad adds borders.",
        type=click.Choice(FITS),
        show_default="whole; the model's own with --resize or --crop, and in benchmark",
    ),
    _model(
        "--scores",
        "Turn logits into scores by softmax or sigmoid, or leave them raw.",
        type=click.Choice(SCORES),
        show_default="the model's own",
    ),
    _input(
        "--config",
        "Read options from this TOML file, such as a run's settings.toml.",
        metavar="FILE",
        type=PATH,
        is_eager=True,
        expose_value=False,
        callback=use_settings,
    ),
    _input(
        "--preset",
        "Apply a set of options; --preset NAME --help lists them.",
        type=click.Choice([*PRESETS]),
        is_eager=True,
        expose_value=False,
        callback=use_settings,
    ),
    _input(
        "--from-file", "Also read paths from FILE, one per line; - is stdin.", metavar="FILE", type=click.File("rb")
    ),
    _input("-0 --null", "End paths in --from-file and printed ones with NUL, as find -print0.", is_flag=True),
    _input(
        "--include",
        "Only use files whose name, directory or trailing path matches GLOB. Repeatable.",
        metavar="GLOB",
        show_default="all",
    ),
    _input("--exclude", "Skip files that match GLOB.", metavar="GLOB", show_default="none"),
    _input(
        "--labels",
        "Compare with true classes: a CSV file of file,class, or folders named after classes.",
        metavar="FILE|folders",
    ),
    _input(
        "--shard",
        "Only process the I-th of N shards, counted from 1.",
        metavar="I/N",
        type=kinds.SHARD,
        show_default="from RANK and WORLD_SIZE, or all",
    ),
    _input("--every", "Videos: explain every N-th clip.", metavar="N"),
    _input("--start", "Videos: start the first clip here.", metavar="SECONDS"),
    _input("--duration", "Videos: explain this many seconds.", metavar="SECONDS", show_default="to the end"),
    _output(
        "-o --output",
        "Output directory, or a .png, .jpg, .webp or .mp4 file for a single picture or video, a .pdf or .svg "
        "file for a single figure, or an .html file for a page; - for stdout.",
        metavar="PATH",
        type=kinds.Output(),
        shell_complete=kinds.complete_directory,
    ),
    _output(
        "--format",
        "Picture format; auto is jpg for JPEG photos, else png. Videos are MP4, or WebP with webp. pdf and "
        "svg are for --panel; html is an interactive page.",
        type=click.Choice(FORMATS, case_sensitive=False),
    ),
    _output(
        "--max-side",
        "Reduce photos to this longest side before drawing. The network still sees the whole photo.",
        metavar="PIXELS",
        show_default="as large as the image",
    ),
    _output("--raw", "Also write the signed relevance to a compressed .npz file."),
    _output("--panel", "Draw one figure per image: the photo and all its maps."),
    _output("--report", "Also write a gallery page, report/index.html."),
    _output(
        "--annotations",
        "Also write a box per map to annotations.json, in COCO's format. masks adds polygons. heatmaps writes all "
        "maps to fiftyone/ instead, as a dataset of FiftyOne, and implies --raw.",
        type=click.Choice(ANNOTATIONS),
    ),
    _output(
        "--threshold",
        "Region for boxes and masks: above this share of the maximum, or the smallest region that holds this "
        "share of the mass.",
        metavar="[max:|mass:]SHARE",
        type=kinds.THRESHOLD,
        default="max:0.5",
    ),
    _output("--records", "Also write a table with a row per map, to a .csv or .parquet file.", metavar="FILE"),
    _output("--json as_json", "Print one JSON record per image instead of paths.", is_flag=True),
    _output("--open show", "Open the gallery page or the first picture when the run is done.", is_flag=True),
    _appearance(
        "--style",
        "Drawing style; atlas is one figure of the regions in which each class has the most evidence.",
        type=click.Choice((*STYLES, ATLAS), case_sensitive=False),
    ),
    _appearance(
        "--cmap",
        "Use this matplotlib colormap.",
        metavar="NAME",
        shell_complete=kinds.complete_colormap,
        show_default="violet for overlays; jet for --style paper; otherwise inferno, or vanimo_r if signed",
    ),
    _appearance("--alpha", "Set an overlay's opacity at the upper end of the scale, 0 to 1."),
    _appearance(
        "--signed/--unsigned",
        "Draw negative values, too, on a symmetric scale.",
        default=None,
        show_default="signed with --against",
    ),
    _appearance("--caption", "Add class, score and color scale in a strip below each picture."),
    _appearance(
        "--cell-size",
        "Panels: longer side of each picture. Wide photos are stacked, with up to twice this size.",
        metavar="PIXELS",
        show_default="3 inches",
    ),
    _appearance("--dpi", "Panels: pixels per inch; pictures, text and lines keep their size in print."),
    _appearance(
        "--scale",
        "End the color scale at each map's maximum (image), at the maximum of all maps of the run (run), at a value "
        "(HIGH), or at a percentile of each map's positive values (P%). LOW is the lower end. 1 is the value of a "
        "uniform map.",
        metavar="[LOW,]image|run|HIGH|P%",
    ),
    _appearance("--cells", "Draw the layer's cells with hard edges, without interpolation."),
    _appearance("--background", "Keep this much of the photo visible where a mask's map is 0.", metavar="OPACITY"),
    _resuming("--skip-existing", "Skip images whose results are up to date."),
    _resuming("--overwrite", "Also replace files that this program did not write."),
    _resuming("--dry-run", "List the images without processing them."),
    _resuming("--fail-fast", "Stop at the first image that fails."),
    _performance("--batch-size", "Explain N images at a time; halved when memory runs out.", show_default="by device"),
    _performance(
        "-j --workers",
        "Use N processes for decoding and drawing; with Ray, N workers that each load the network.",
        show_default="up to one per CPU",
    ),
    _performance("--device", "Run the network on cpu, cuda, cuda:1, mps; auto prefers a GPU.", metavar="NAME"),
    _performance(
        "--dtype", "Compute in this type; bfloat16 is faster on recent GPUs, but coarser.", type=click.Choice(DTYPES)
    ),
    _performance(
        "--engine",
        "Run on this machine, or on the Ray cluster at RAY_ADDRESS.",
        type=click.Choice(ENGINES, case_sensitive=False),
    ),
    _performance("--gpus-per-worker", "GPUs per Ray worker; fractions share one.", show_default="1 if there is a GPU"),
    _performance("--timeout", "Seconds to wait for a server."),
    _performance("--retries", "How often a failed request is repeated."),
    _performance("--max-bytes", "Largest file from URLs, tar files, stdin."),
    _performance("--max-pixels", "Largest image that is decoded.", show_default="Pillow's own, 179 million"),
    _performance("--image-timeout", "Seconds that decoding or drawing an image may take."),
    _information("-q --quiet", "Hide the progress bar and warnings.", is_flag=True),
    _information("-v --verbose", "Also print settings, scores and lost mass.", is_flag=True),
    _information("--debug", "Show the traceback of an error.", is_flag=True),
)
# Of a run; other commands share some
OPTIONS = {option.name or "": option for option in sorted(_ALL, key=lambda one: isinstance(one, Setting))}


def in_section(*sections: str) -> list[str]:
    """The names of the options of some sections."""
    return [name for name, option in OPTIONS.items() if option.section in sections]
