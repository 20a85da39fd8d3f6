"""The options of ``eb-saliency``, some of which its commands have, too. Imports neither torch nor torchvision."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import click

from ebcli.cli.click_types import (
    CANDIDATES,
    CLASS,
    DIRECTORY,
    INTEGERS,
    METHOD,
    NUMBERS,
    OUTPUT,
    PATH,
    PIXEL,
    PLACE,
    RESIZE,
    SHARD,
    THRESHOLD,
    SectionOption,
    Setting,
    complete_colormap,
    complete_model,
    complete_weights,
)
from ebcli.cli.settings import use_file
from ebcli.drawing.style import ATLAS, STYLES
from ebcli.models.keywords import FITS, SCORES
from ebcli.run.plan import FIELDS, SETTINGS_ONLY, SHORT_FORM, VALUES
from ebcli.run.plan_parts import ANNOTATIONS, DTYPES, ENGINES, FORMATS, ONLY

Options = Mapping[str, Any]  # the values of a command's arguments and options, by their names

CONTEXT = {
    "auto_envvar_prefix": "EB_SALIENCY",
    "show_default": True,
    "max_content_width": 110,
    "help_option_names": ["-h", "--help"],
}
# which -h lists
_COMMON = (
    "target layer method against top_k model weights config labels output panel report style skip_existing verbose"
).split()
_CHOICES = {
    "fit": FITS,
    "scores": SCORES,
    "format": FORMATS,
    "annotations": ANNOTATIONS,
    "style": (*STYLES, ATLAS),
    "dtype": DTYPES,
    "engine": ENGINES,
    "only": ONLY,
}
_TYPES: dict[str, click.ParamType] = {  # by the types of values of plans, or by their names
    "int": click.INT,
    "float": click.FLOAT,
    "Path": PATH,
    "Sequence[int]": INTEGERS,
    "Sequence[float]": NUMBERS,
    "Channels": NUMBERS,
    "where": PLACE,
    "at": PIXEL,
    "candidates": CANDIDATES,
    "shard": SHARD,
    "threshold": THRESHOLD,
    "resize": RESIZE,
    "output": OUTPUT,
    "similar_to": PATH,
    "target": CLASS,
    "against": CLASS,
}
_TYPES |= {name: click.Choice([*words], case_sensitive=False) for name, words in _CHOICES.items()}


def option(section: str, spelling: str, text: str, **settings: Any) -> SectionOption:
    """An option as the help shows it. A value of plans has that default: False is a flag's, a tuple that of several.

    Args:
        section: where the help lists it.
        spelling: its names, and perhaps what it takes, in capitals.
        text: what it does, and perhaps in brackets what is used without it.
        settings: what Click does not know by the value of plans or by `_TYPES`.
    """
    words = spelling.split()
    metavar = None if words[-1].islower() else words.pop()
    name = words[-1].partition("/")[0].lstrip("-").replace("-", "_")
    text, _, default_words = text.partition(" [default: ")
    field = FIELDS.get(name)
    default = settings.get("default", getattr(field, "default", None))
    first_type = str(getattr(field, "type", "")).partition(" | ")[0]
    kind = _TYPES.get(name) or _TYPES.get(first_type.rpartition(".")[2])  # pathlib._local.Path in Python 3.13
    defaults = (
        {"is_flag": True}
        if default is False
        else {"default": default, "multiple": isinstance(default, tuple)}
    )
    defaults |= {"type": kind, "metavar": metavar, "show_default": default_words.removesuffix("]") or None}
    defaults |= {"section": section, "help": text, "common": name in _COMMON}
    if name in SETTINGS_ONLY:
        return Setting(words, hidden=True, **defaults | settings)
    return SectionOption(words, **defaults | settings)


_SECTIONS = "Map Model Input Output Appearance Resuming Performance Information".split()
_map, _model, _input, _output, _appearance, _resuming, _performance, _information = (
    partial(option, section) for section in _SECTIONS
)

_ALL = (
    _map(
        "-t --target",
        "Explain this class, by index or name. If several classes match, the likeliest is explained. With "
        "clip/NAME and open_clip/NAME, explain this text. Repeatable. [default: the most likely]",
    ),
    _map(
        "-l --layer NAME|input|all",
        "Compute the map at this layer. Use 'input' for the pixels, 'all' for one layer per resolution. "
        "Repeatable. [default: the model's own]",
    ),
    _map(
        "-x --method NAME",
        "Compute maps by this method, such as object, or your own as FILE.py:NAME. contrastive shows why it is this "
        "class, and object where the object is; docs/methods.md lists all. Repeatable. [default: contrastive]",
        type=METHOD,
        default=(),
    ),
    _map(
        "--contrastive/--marginal",
        "Short for --method contrastive: what distinguishes the class; and for --method marginal: everything that "
        "excites it.",
        default=None,
    ),
    _map(
        "--against",
        "Show what distinguishes the target from this class. Takes an index or a name; with --similar-to, a picture. "
        "Repeatable. [default: the class's own classifier weights, negated]",
    ),
    _map("--compare-with METHOD", "Also show this method's map in panels. Repeatable.", type=METHOD),
    _map(
        "--similar-to PICTURE",
        "Explain the similarity to this picture, by the features below the classifier. Repeatable.",
    ),
    _map(
        "-k --top-k K",
        "Explain the K most likely classes. [default: 1; all for detectors and segmentation; "
        "up to 20 for values; an atlas has --candidates]",
    ),
    _map(
        "--above SCORE",
        "Explain every class that scores above SCORE. In segmentation, the score is the share of the image "
        "that the class covers. [default: 0.01 for segmentation]",
    ),
    _map("--score SCORE", "Detectors: explain every detection that scores at least SCORE."),
    _map(
        "--where X,Y|X,Y,W,H|FILE",
        "Segmentation: explain the class at this pixel, or in the bright pixels of the image FILE; maps of values: "
        "explain the value there. "
        "Detectors: explain only the detection that overlaps most with this box, in pixels. [default: every "
        "detection, the whole segment, or the mean of the values]",
        shell_complete=PATH.shell_complete,
    ),
    _map(
        "--at X,Y",
        "Print the classes that have evidence at this pixel of each image, with their shares. Implies --style atlas.",
    ),
    _map(
        "--candidates windows|photo|FILE",
        "Compare these classes: the three likeliest of each of nine overlapping windows of the image, the 20 "
        "likeliest of the whole image, or those in FILE, one per line. [default: windows for an atlas]",
        shell_complete=PATH.shell_complete,
    ),
    _map(
        "--tiles N",
        "Resize images so that N tiles of the size of the network's input fit across the shorter side, "
        "explain overlapping tiles, and join their maps. [default: 1 for images more than 2.5 times as long "
        "as wide; others are not cut]",
    ),
    _map(
        "--sufficiency",
        "Test whether a small part of each image suffices to keep half of the score. The part that the "
        "first map shows is compared with a blob at the center, the map shuffled, and the gradient. Takes "
        "23 more passes.",
    ),
    _map(
        "--allow-unsupported",
        "Use ordinary gradients, with a warning, for operations without an excitation rule.",
    ),
    _model(
        "-m --model NAME",
        "Load this model. Takes a torchvision name, timm/NAME, hf/NAME, ultralytics/FILE.pt, clip/NAME or "
        "open_clip/NAME for texts, a network in FILE.onnx or FILE.pt2, or your own code as FILE.py:FACTORY "
        "or MODULE:FACTORY.",
        shell_complete=complete_model,
    ),
    _model(
        "--weights NAME|FILE|none",
        "Load these weights. Takes DEFAULT, another name, a checkpoint file, or none.",
        shell_complete=complete_weights,
    ),
    _model(
        "--class-names",
        "Read the class names from FILE, in output order: one per line, or JSON. [default: the model's own]",
    ),
    _model(
        "--head NAME|INDEX",
        "Explain this output of a network that returns several, by its name or position. [default: the only one, or "
        "the one named logits, pred or out]",
    ),
    _model(
        "--resize PIXELS",
        "Resize the shorter side to PIXELS, with --fit pad the longer one, with squash both.",
    ),
    _model("--crop PIXELS", "Crop the center to PIXELS, in place of the whole image."),
    _model("--depth SLICES", "Resize volumes to this many slices."),
    _model("--orientation CODES", "Give the network volumes whose axes x, y and z lead there, such as RAS."),
    _model("--mean", "Subtract this mean from pixels of 0 to 1: one number, or one for each channel."),
    _model("--std", "Divide pixels by this standard deviation."),
    _model("--channels", "Give the network these channels of an array or TIFF, from 1."),
    _model("--bands N[,N...]", "Show these channels of the file in pictures: one, or red, green and blue."),
    _model(
        "--range LOW,HIGH",
        "Scale arrays, TIFF, medical images and 16-bit PNG: LOW becomes 0 and HIGH becomes 1.",
    ),
    _model(
        "--fit",
        "Fit the image to the network: whole keeps the whole image and its aspect ratio, crop cuts out the "
        "central square, squash distorts it to a square, pad adds borders. [default: whole; the model's own "
        "with --crop, and in benchmark]",
    ),
    _model(
        "--scores",
        "Turn outputs into scores by softmax or sigmoid, or leave them raw: numbers instead of classes. [default: the "
        "model's own]",
    ),
    _input(
        "--config",
        "Read options from this TOML file. A run writes its own to settings.toml.",
        type=PATH,
        callback=use_file,
        is_eager=True,  # it sets defaults of the others
        expose_value=False,
    ),
    _input("--from-file FILE", "Also read paths from FILE, one per line; - is stdin.", type=click.File("rb")),
    _input("-0 --null", "End paths in --from-file and printed ones with NUL, as find -print0.", is_flag=True),
    _input(
        "--include GLOB",
        "Only use files whose name, directory or trailing path matches GLOB. Repeatable. [default: all]",
    ),
    _input("--exclude GLOB", "Skip files that match GLOB. [default: none]"),
    _input(
        "--labels FILE|folders",
        "Compare with the true classes. Takes a CSV file of file,class, or folders named after classes.",
    ),
    _input(
        "--only", "With --labels: compute maps only of images with a wrong prediction. [default: all images]"
    ),
    _input(
        "--shard I/N",
        "Only process the I-th of N shards, counted from 1. [default: from RANK and WORLD_SIZE, or all]",
    ),
    _input("--allow-truncated", "Explain what can be read of images that are cut off."),
    _input("--every N", "Videos: explain every N-th frame, or every N-th clip if the network is for video."),
    _input("--start SECONDS", "Videos: start here."),
    _input("--duration SECONDS", "Videos: explain this many seconds. [default: to the end]"),
    _input(
        "--frames RATE",
        "Explain a directory of numbered images as one video with this many frames per second. [default: each "
        "image for itself]",
    ),
    _output(
        "-o --output PATH",
        "Write to this directory or file. A .png, .jpg or .webp file is for a single picture, a .mp4, .webm, "
        ".gif, .webp or .apng file for a single video, a .pdf or .svg file for a single figure, and an .html file for "
        "a page; - is stdout.",
        shell_complete=DIRECTORY.shell_complete,
    ),
    _output(
        "--format",
        "Picture format; auto is jpg for JPEG photos, else png. Videos are WebP with webp; else, animations keep their "
        "format, and others are MP4. pdf and svg imply --panel; html is an interactive page.",
    ),
    _output(
        "--max-side PIXELS",
        "Reduce photos to this longest side before drawing. The network still sees the whole photo. "
        "[default: as large as the image]",
    ),
    _output("--raw", "Also write the signed relevance to a compressed .npz file."),
    _output("--panel", "Draw one figure per image: the photo and all its maps."),
    _output("--report", "Also write a gallery page, report/index.html."),
    _output(
        "--annotations",
        "Also write a box per map to annotations.json, in COCO's format. masks adds polygons. heatmaps "
        "writes all maps to fiftyone/ instead, as a FiftyOne dataset, and implies --raw.",
    ),
    _output(
        "--threshold [max:|mass:]SHARE",
        "Region for boxes and masks: above this share of the maximum, or the smallest region that holds this "
        "share of the mass.",
        default="max:0.5",
    ),
    _output("--records", "Also write a table with a row per map, to a .csv or .parquet file."),
    _output("--json as_json", "Print one JSON record per image instead of paths.", is_flag=True),
    _appearance(
        "--style",
        "Draw in this style. An atlas is one figure of the regions in which each class has the most evidence.",
    ),
    _appearance(
        "--cmap NAME",
        "Use this matplotlib colormap. [default: violet for overlays; jet for --style paper; otherwise "
        "inferno, or vanimo_r if signed]",
        shell_complete=complete_colormap,
    ),
    _appearance("--alpha", "Set an overlay's opacity at the upper end of the scale, 0 to 1."),
    _appearance(
        "--signed/--unsigned",
        "Draw negative values, too, on a symmetric scale. [default: signed with --against]",
        default=None,
    ),
    _appearance("--caption", "Add class, score and color scale in a strip below each picture."),
    _appearance(
        "--header/--no-header",
        "Figures: begin with the image's name, and a line with model, layer and method.",
    ),
    _appearance(
        "--cell-size PIXELS",
        "Panels: longer side of each picture. Wide photos are stacked, with up to twice this size. [default: 3 inches]",
    ),
    _appearance("--dpi", "Panels: pixels per inch; pictures, text and lines keep their size in print."),
    _appearance(
        "--scale [LOW,]image|run|HIGH|P%",
        "End the color scale at each map's maximum, or percentile 99.5 for fine maps (image), at the "
        "largest value in a sample of the run's images (run), at a value (HIGH), or at a percentile of each "
        "map's positive values (P%). LOW is the lower end. 1 is the value of each cell in a uniform map "
        "with the sum 1.",
    ),
    _appearance(
        "--smooth SECONDS",
        "Videos: average the maps of frames that are less than this apart, with weights that fall to 0; 0 for none.",
    ),
    _appearance("--cells", "Draw the layer's cells with hard edges, without interpolation."),
    _appearance("--background", "Keep this much of the photo visible where a mask's map is 0."),
    _resuming("--skip-existing", "Skip images whose results are up to date."),
    _resuming("--overwrite", "Also replace files that this program did not write."),
    _resuming("--dry-run", "List the images without processing them."),
    _resuming("--fail-fast", "Stop at the first image that fails."),
    _performance(
        "--batch-size", "Explain N images at a time; halved when memory runs out. [default: by device]"
    ),
    _performance(
        "-j --workers",
        "Use N processes for decoding and drawing; with Ray, N workers that each load the network. "
        "[default: up to one per CPU; with Ray, one per GPU, or per two CPUs]",
    ),
    _performance("--device NAME", "Run the network on cpu, cuda, cuda:1, mps; auto prefers a GPU."),
    _performance("--dtype", "Compute in this type; bfloat16 is faster on recent GPUs, but coarser."),
    _performance("--engine", "Run on this machine, or on the Ray cluster at RAY_ADDRESS."),
    _performance(
        "--gpus-per-worker", "GPUs per Ray worker; fractions share one. [default: 1 if there is a GPU]"
    ),
    _performance("--timeout", "Seconds to wait for a server."),
    _performance("--retries", "How often a failed request is repeated."),
    _performance("--max-bytes", "Largest file from URLs, tar files, stdin."),
    _performance("--max-pixels", "Largest image that is decoded. [default: Pillow's own, 179 million]"),
    _performance("--image-timeout", "Seconds that decoding or drawing an image may take."),
    _information("-q --quiet", "Hide the progress bar and warnings.", is_flag=True),
    _information("-v --verbose", "Also print settings, scores and lost mass.", is_flag=True),
    _information("--debug", "Show the traceback of an error.", is_flag=True),
)
# Of a run; other commands share some
OPTIONS = {
    option.name or "": option for option in sorted(_ALL, key=lambda option: isinstance(option, Setting))
}


def values_in(options: Options) -> dict[str, Any]:
    """The options of a command that are values of a plan."""
    return {name: options[name] for name in (VALUES | {SHORT_FORM}) & options.keys()}


def in_section(section: str) -> list[str]:
    """The names of the options of a section."""
    return [name for name, option in OPTIONS.items() if option.section == section]
