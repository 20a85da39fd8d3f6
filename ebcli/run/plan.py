"""What a run is asked to do: a plan from named values, each derived here if it follows from others; and as text.

Imports neither torch nor Click.
"""

import json
import os
import shlex
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, Field, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from ebcli.datatypes.explanation import Box
from ebcli.drawing.style import ATLAS, UNSIGNED_STYLES, DrawingStyle
from ebcli.errors import DISTRIBUTION, ConfigurationError, import_optional
from ebcli.files.clips import ClipOptions
from ebcli.files.naming import AUTO, FIGURE_FORMATS, HTML, MOVING, STDOUT
from ebcli.files.paths import RemoteOptions, url_of, without_secrets
from ebcli.imports import installed_version
from ebcli.methods.table import CONTRASTIVE, MARGINAL, find_method
from ebcli.models.keywords import ALL, DETECTION, SEGMENTATION, VIDEO, WHOLE
from ebcli.models.names import torchvision_names
from ebcli.models.sources import takes_texts
from ebcli.models.spec import ModelSpec, Preprocessing, as_classes
from ebcli.run.plan_parts import (
    PICTURES,
    VIDEOS,
    WINDOWS,
    ExecutionOptions,
    InputOptions,
    MapOptions,
    OutputOptions,
    Values,
    WordOptions,
    not_a_picture,
)

T = TypeVar("T")

# The name of a value is that of its option, and that of its field except for these
_OPTION_OF = {
    (ModelSpec, "name"): "model",
    (ModelSpec, "like"): "similar_to",
    (MapOptions, "layers"): "layer",
    (MapOptions, "targets"): "target",
    (MapOptions, "methods"): "method",
    (MapOptions, "beside"): "compare_with",
    (DrawingStyle, "name"): "style",
    (OutputOptions, "directory"): "output",
}
_PART_FIELDS = {"remote", "clips", "preprocessing"}  # which are parts
_SCALE = ("vmin", "vmax", "percentile")  # and the scale of `OutputOptions` are one value
# What a run gets beside its values, what only its records show, and the question of `ask`
_HIDDEN = {"stdin", "login", "query", "track_lost_mass", "words", *_SCALE}
CHOOSING = ("target", "similar_to", "top_k", "above", "labels", "candidates")
PREFIX = "EB_SALIENCY_"  # of the variables that set options
# which no option of the command sets: fine points of data and drawing, what a machine can do, and limits
SETTINGS_ONLY = frozenset(
    "bands channels depth orientation background cells dtype fail_fast "
    "gpus_per_worker timeout retries max_bytes max_pixels image_timeout".split()
)
REPEATED = {
    "images",
    "include",
    "exclude",
    "layer",
    "target",
    "similar_to",
    "against",
    "method",
    "compare_with",
}
NEGATED = {"signed": "unsigned", "header": "no-header"}
SHORT_FORM = "contrastive"  # of the methods of that name, and marginal if it is false
_IN_DIRECTORIES = ("raw", "report", "annotations", "records", "skip_existing", "questions", "answers")
_SEPARATORS = {"shard": "/", "threshold": ":"}


def values_of(*parts: type[Any]) -> dict[str, Field[Any]]:
    """The names of the values of some parts of a plan, each with its field."""
    values = {}
    for part in parts:
        for item in fields(part):
            if item.name not in _PART_FIELDS:
                values[_OPTION_OF.get((part, item.name), item.name)] = item
    return values


def part_of(kind: type[T], values: Mapping[str, Any], **parts: Any) -> T:
    """A part of a plan, with those of some values that are its own."""
    parts |= {item.name: values[name] for name, item in values_of(kind).items() if name in values}
    return kind(**parts)


@dataclass(frozen=True)
class RunPlan:
    """A whole run: which images, which network, which maps, drawn how, written where.

    Raises:
        ConfigurationError: two parts exclude each other.
    """

    inputs: InputOptions
    _: KW_ONLY
    model: ModelSpec = field(default_factory=ModelSpec)
    maps: MapOptions = field(default_factory=MapOptions)
    style: DrawingStyle = field(default_factory=DrawingStyle)
    output: OutputOptions = field(default_factory=OutputOptions)
    execution: ExecutionOptions = field(default_factory=ExecutionOptions)
    words: WordOptions | None = None

    @classmethod
    def from_values(cls, *, usual_fit: str | None = WHOLE, **values: Any) -> "RunPlan":
        """The plan of some values; what follows from them is derived here, and nowhere else.

        Args:
            usual_fit: how images are fitted if no value says so; None for the network's own way.
            values: named like the options of the command, with underscores; None for the default. ``layer``, ``target``
                and others that are repeated are tuples, and ``scale`` is a text, see ``OutputOptions.of_scale``.

        Raises:
            ConfigurationError: a value is wrong, or two exclude each other.
        """
        unknown = values.keys() - VALUES - _HIDDEN - {SHORT_FORM}
        if unknown:
            raise TypeError(f"a plan has no value {min(unknown)!r}")
        values = {name: value for name, value in values.items() if value is not None}
        values |= OutputOptions.of_scale(values.get("scale", OutputOptions.scale))
        values["format"] = _format(values)
        _derive_methods(values)
        _derive_style(values)
        if values["format"] in FIGURE_FORMATS:
            values["panel"] = True
        if not {"fit", "crop"} & values.keys():
            values["fit"] = usual_fit
        if "words" in values:  # an answer is one figure
            values["panel"] = True
            if values["format"] == AUTO:
                values["format"] = "png"
        _derive_classes(values)
        clips = part_of(ClipOptions, values)
        remote = part_of(RemoteOptions, values)
        return cls(
            part_of(InputOptions, values, clips=clips, remote=remote),
            model=part_of(ModelSpec, values, preprocessing=part_of(Preprocessing, values)),
            maps=part_of(MapOptions, values),
            style=part_of(DrawingStyle, values),
            output=part_of(OutputOptions, values),
            execution=part_of(ExecutionOptions, values),
            words=values.get("words"),
        )

    @property
    def values(self) -> Values:
        """All values of the plan; `of` makes the same plan of them."""
        model = self.model
        values: Values = {}
        for part in self._parts:
            for name, item in values_of(type(part)).items():
                if name not in _HIDDEN:
                    values[name] = getattr(part, item.name)
        values["scale"] = self._scale
        if not model.descriptions:
            return values
        for name in ("target", "against"):
            values[name] = tuple(model.descriptions[int(index)] for index in values[name])
        if model.like:
            values |= {"similar_to": tuple(map(Path, values["target"])), "target": ()}
        else:
            values["class_names"] = None
        return values

    @property
    def _scale(self) -> str:
        """The value ``scale``, see ``OutputOptions.of_scale``."""
        style = self.style
        end = self.output.scale
        if style.percentile is not None:
            end = f"{style.percentile!r}%"
        elif style.vmax is not None:
            end = str(style.vmax)
        return f"{style.vmin!r},{end}" if style.vmin else end

    @property
    def _parts(self) -> tuple[Any, ...]:
        inputs = self.inputs
        model = self.model
        network_parts = model, model.preprocessing, self.maps
        return inputs, inputs.clips, inputs.remote, *network_parts, self.output, self.style, self.execution

    def replace(self, **values: Any) -> "RunPlan":
        """The plan with other values."""
        return self.from_values(**self.values | values)

    def __post_init__(self) -> None:
        output = self.output
        if self.inputs.stdin is not None and self.execution.engine == "ray":
            raise ConfigurationError("other machines cannot read stdin: name a file, or drop --engine ray")
        if self.maps.only is not None and self.inputs.labels is None:
            advice = "add --labels FILE, or --labels folders"
            raise ConfigurationError(f"--only {self.maps.only} needs the true classes: {advice}")
        style = self.style
        if style.signed and not any(method.is_signed for method in self.maps.method_entries):
            problem = f"{self.maps.methods[0]} maps have no negative values"
            raise ConfigurationError(f"{problem}: drop signed, or choose contrastive maps")
        self._check_figure()
        if style.name == ATLAS:
            _check_atlas(self.maps)
        elif output.format == HTML:
            raise ConfigurationError(f"an interactive page shows an atlas: drop the style {style.name}")
        elif self.maps.at is not None:
            raise ConfigurationError(f"--at ranks the classes of an atlas: drop the style {style.name}")
        if output.is_file:
            self._check_one_picture()

    def _check_one_picture(self) -> None:
        """Raise ConfigurationError if the run writes more than one picture."""
        problem = self._problem_of_one_picture()
        if problem is not None:
            directory = self.output.directory
            name = "stdout" if directory == STDOUT else f"'{directory}'"
            raise ConfigurationError(f"{name} takes one picture, but {problem}")

    def _check_figure(self) -> None:
        """Raise ConfigurationError if something needs a panel and there is none, or the other way round."""
        format_ = self.output.format
        if self.output.panel:
            if self.style.caption:
                raise ConfigurationError("a panel has captions of its own: drop caption")
            return
        if self.style.name == "mask" and format_ == "jpg":
            raise ConfigurationError("the style mask needs transparency, which jpg lacks: choose png or webp")
        if self.maps.beside:
            raise ConfigurationError("--compare-with draws another method's map into panels: add --panel")

    def _problem_of_one_picture(self) -> str | None:
        """Why the run writes more than one picture, and what to do about it; None if it does not."""
        images = self.inputs.images
        advice = "name a directory with -o"
        if len(images) != 1:
            return f"there are {len(images)} inputs: {advice}"
        (image,) = images
        is_directory = os.path.isdir(image) and self.inputs.clips.frames is None
        if url_of(image) is None and (is_directory or image.suffix.lower() == ".tar"):
            return f"'{image}' may hold many images: {advice}"
        if self._may_have_many_pictures:
            return f"there are several maps: add --panel to draw them in one figure, or {advice}"
        options = vars(self.output) | vars(self.words or WordOptions())
        for name in _IN_DIRECTORIES:
            if options[name]:
                option = f"--{_option(name)}"
                return f"{option} needs a directory: drop {option}, or {advice}"
        if self.maps.at is not None and self.output.directory == STDOUT:
            return "--at prints shares there: drop one of them"
        return None

    @property
    def _may_have_many_pictures(self) -> bool:
        """Whether an image may have several maps, each a picture of its own."""
        if self.output.panel:
            return False
        maps = self.maps
        varies = maps.above is not None or maps.candidates is not None or self.inputs.labels is not None
        if varies or ALL in maps.layers:
            return True
        if max(len(maps.targets), maps.max_classes, len(maps.layers), len(maps.methods)) > 1:
            return True
        if self.output.directory.suffix.lower() in VIDEOS:  # all objects of a frame are in one picture
            return False
        finds_many = {*torchvision_names(DETECTION), *torchvision_names(SEGMENTATION)}
        return maps.top_k != 1 and maps.where is None and self.model.name.lower() in finds_many


def _check_atlas(maps: MapOptions) -> None:
    """Raise ConfigurationError if the maps cannot be those of an atlas."""
    requirement = "an atlas compares classes by contrastive maps against their duals"
    if maps.methods != (CONTRASTIVE,):
        raise ConfigurationError(f"{requirement}: drop --method, or --marginal")
    if maps.against:
        raise ConfigurationError(f"{requirement}: drop --against")
    if len(maps.layers) > 1 or ALL in maps.layers:
        raise ConfigurationError("an atlas shows one layer: name one with --layer")
    if maps.beside:
        raise ConfigurationError("an atlas has no other methods' maps: drop --compare-with")


FIELDS = values_of(*map(type, RunPlan(InputOptions((Path(),)))._parts))  # of all values
VALUES = FIELDS.keys() - _HIDDEN


def _check_choice(values: Values) -> bool:
    """Whether classes are chosen. Raises ConfigurationError if they are in two ways."""
    choosing = [_option(name) for name in CHOOSING if values.get(name, ()) != ()]
    if len(choosing) > 1:
        first, other, *_ = choosing
        raise ConfigurationError(f"--{first} and --{other} both choose the classes: drop one of them")
    return bool(choosing)


def _derive_methods(values: Values) -> None:
    """Add the methods, each by its own name and once. Raises ConfigurationError if they are given in two ways."""
    short_form = values.pop(SHORT_FORM, None)
    names = values.get("method", ())
    if isinstance(names, str):
        names = (names,)
    if names and short_form is not None:
        word = CONTRASTIVE if short_form else MARGINAL
        raise ConfigurationError(f"--{word} is short for --method {word}: drop one of them")
    if not names:
        names = (MARGINAL if short_form is False else CONTRASTIVE,)
    values["method"] = tuple(dict.fromkeys(find_method(name).name for name in names))
    if "compare_with" in values:
        values["compare_with"] = tuple(
            dict.fromkeys(find_method(name).name for name in values["compare_with"])
        )


def _derive_style(values: Values) -> None:
    """Add the style of an atlas, its classes and its figure, and whether negative values are drawn."""
    is_chosen = _check_choice(values)
    style = values.get("style", DrawingStyle.name)
    if style == DrawingStyle.name and (values["format"] == HTML or "at" in values):
        style = ATLAS
    if style == ATLAS:
        values["panel"] = True
        if not is_chosen:
            values["candidates"] = WINDOWS
    values["style"] = style
    # both halves of a map against another class say what tells the two apart
    has_against = bool(values.get("against")) and CONTRASTIVE in values["method"]
    is_two_sided = has_against and style not in UNSIGNED_STYLES and not values["vmin"]
    values.setdefault("signed", is_two_sided)


def _derive_classes(values: Values) -> None:
    """Make classes of texts or pictures to compare images with."""
    pictures = values.get("similar_to")
    descriptions = pictures or values.get("target")
    if not descriptions:
        return
    if not pictures and ("class_names" in values or not takes_texts(values.get("model", ModelSpec.name))):
        return
    targets = [*map(str, descriptions)]
    classes, values["target"], values["against"] = as_classes(targets, values.get("against", ()))
    if pictures:
        values["similar_to"] = tuple(map(Path, classes))
    else:
        values["class_names"] = classes


def _format(values: Values) -> str:
    """The format of pictures; that of a single one by the name of its file."""
    format_: str = values.get("format", AUTO)
    path: Path = values.get("output", OutputOptions.directory)
    if path == STDOUT and format_ == AUTO:
        return "png"
    if path == STDOUT or not OutputOptions(path).is_file:
        return format_
    suffix = path.suffix.lower()
    is_picture = suffix in PICTURES and (suffix not in VIDEOS or _may_be_video(values, suffix))
    if not is_picture:
        raise not_a_picture(path, values["images"][0])
    if suffix in VIDEOS:
        import_optional("av")
    elif format_ not in (AUTO, PICTURES[suffix]):
        raise ConfigurationError(f"'{path}' is not {format_}: drop --format, or change the name")
    return PICTURES[suffix]


def _may_be_video(values: Values, suffix: str) -> bool:
    """Whether the only picture may be a video: of a network for video without a figure, or of frames of an input."""
    model = values.get("model", ModelSpec.name)
    if model.lower() in torchvision_names(VIDEO):
        return suffix == ".mp4" and not values.get("panel")
    return ":" in model or any(map(_may_move, values["images"]))


def _may_move(image: Path) -> bool:
    """Whether an input may be a video: by its name, or if it is a PNG, by its content."""
    if image.suffix.lower() == ".png" and image.exists():
        from ebcli.files.media.video import is_animation

        return is_animation(image)
    return image.suffix.lower() in MOVING


def as_settings(plan: RunPlan) -> str:
    """The settings of a run in TOML, for ``--config``."""
    values = _without(plan, ("signed", "fit"))
    names = [str(without_secrets(image)[0]) for image in values.pop("images")]
    valid = [name for name in names if name.encode(errors="ignore").decode() == name]
    lines = [
        f"# Written by {DISTRIBUTION} {installed_version()}. "
        "From the same directory, --config with this file repeats the run."
    ]
    if len(valid) < len(names):
        lines.append(f"# Inputs whose names are not valid UTF-8 are missing: {len(names) - len(valid)}")
    lines.append(f"images = {_toml(valid)}")
    for name, value in values.items():
        if value not in (None, ()):
            lines.append(f"{_option(name)} = {_toml(_text(name, value))}")
    return "\n".join(lines) + "\n"


def as_command(plan: RunPlan, environment: Mapping[str, str] = os.environ) -> str:
    """The shortest command line that makes a plan, whatever options the environment sets."""
    values = _without(plan, [name for name in plan.values if name != "images"])
    words = ["eb-saliency", *map(_operand, values.pop("images"))]
    settings = [word for name in environment if name.startswith(PREFIX) for word in ("-u", name)]
    for name, value in values.items():
        if name in SETTINGS_ONLY:
            settings.append(f"{PREFIX}{name.upper()}={_text(name, value)}")
        else:
            words += _option_words(name, value)
    return shlex.join(["env", *settings, *words] if settings else words)


def _option_words(name: str, value: Any) -> list[str]:
    """A value as words of a command line."""
    flag = f"--{_option(name)}"
    if isinstance(value, bool):
        return [flag if value else f"--{NEGATED[name]}"]
    if name not in REPEATED:
        return [flag, str(_text(name, value))]
    return [word for item in value for word in (flag, str(item))]


def _without(plan: RunPlan, names: Iterable[str]) -> Values:
    """The values of a plan without those of some that follow from the others, or are the default."""
    all_values = values = plan.values
    for name in names:
        fewer = {**values}
        del fewer[name]
        with suppress(ConfigurationError):
            if RunPlan.from_values(**fewer).values == all_values:
                values = fewer
    return values


def _option(name: str) -> str:
    return name.replace("_", "-")


def _operand(path: Path) -> str:
    """A path that is neither an option nor the name of a command."""
    name = str(path)
    is_clear = name == "-" or ("." in name and not name.startswith("-"))
    return name if is_clear else f"./{name}"


def _text(name: str, value: Any) -> Any:
    """A value as files and options give it: several numbers are one text."""
    if isinstance(value, Box):
        value = value.xywh
    if name == "candidates" and isinstance(value, Path) and not value.is_absolute():
        return f"./{value}"  # which no other choice is
    if isinstance(value, tuple) and name not in REPEATED:
        return _SEPARATORS.get(name, ",").join(map(str, value))
    return value


def _toml(value: Any) -> str:
    if isinstance(value, float):
        return repr(value)
    # JSON is TOML, but for infinite numbers, and DEL in strings
    return json.dumps(value, default=str, ensure_ascii=False).replace("\x7f", "\\u007f")
