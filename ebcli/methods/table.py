"""The table of methods: what each is called, what it needs and says, and what computes its maps. Imports no torch."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ebcli.errors import ConfigurationError, LayerError, closest, import_optional
from ebcli.imports import METHODS as PLUGINS
from ebcli.imports import (
    execute_file,
    guard_user_code,
    importing_beside,
    load_plugin,
    name_in_errors,
    plugins,
)

if TYPE_CHECKING:
    from ebcli.methods.call import MethodCall, MethodMaps

    Function = Callable[[MethodCall], Sequence[MethodMaps]]
    Passes = Callable[[Sequence[int]], int]

CONTRASTIVE, MARGINAL, OBJECT = "contrastive", "marginal", "object"
CHANCE = "random", "center"  # which benchmarks measure, too
ANY_LAYER = "any layer"  # the pixels included
HIDDEN_LAYER = "a layer below the classifier, not the pixels"
PICTURE = "the picture"  # whatever the layer


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method.

    Attributes:
        name: what options call it.
        words: what its maps are called in records and pictures.
        function: computes the maps, or the ``module:name`` of what does.
        source: where it was published.
        place: where its maps lie, ``ANY_LAYER``, ``HIDDEN_LAYER`` or ``PICTURE``.
        is_signed: negative values speak against the class.
        has_unit: its values are probabilities, or differences of these; those of others have no unit.
        takes_against: it can contrast with other classes.
        knows_class: its maps depend on the class.
        module: what it needs beside this package; empty for nothing.
        file: the file that registered it; empty for an installed one.
        passes: of methods that take many forward passes, how many an image takes: a function of the sides of the
            network's picture, such as (height, width), or the ``module:name`` of one.
    """

    name: str
    words: str
    function: "Function | str"
    source: str
    place: str = ANY_LAYER
    is_signed: bool = False
    has_unit: bool = False
    takes_against: bool = False
    knows_class: bool = True
    module: str = ""
    file: str = ""
    passes: "Passes | str | None" = None

    def compute(self, call: "MethodCall") -> Sequence["MethodMaps"]:
        """The maps at each layer of a call where the method has some; of one whose maps lie on the picture, one."""
        if self.place == HIDDEN_LAYER:
            call = replace(call, layers=[*filter(None, call.layers)])
        if not call.layers:
            return []
        maps: Sequence[MethodMaps] = _imported(self.function)(call)
        return maps

    def passes_of(self, sides: Sequence[int]) -> int | None:
        """How many forward passes an image takes; None if it is a few.

        Args:
            sides: of the network's picture: (H, W), or (T, H, W) of a video or volume.
        """
        if self.passes is None:
            return None
        passes: int = _imported(self.passes)(sides)
        return passes


def _imported(function: Any) -> Any:
    """A function, or the one that ``module:name`` names."""
    if not isinstance(function, str):
        return function
    module, _, name = function.partition(":")
    return getattr(import_module(module), name)


_EB = "Zhang et al., ECCV 2016"
_EXCITATION = "ebcli.methods.excitation"
_GRADIENTS = "ebcli.methods.gradients"
_PERTURBATION = "ebcli.methods.perturbation"
_RELEVANCE = "ebcli.methods.relevance"
_BUILT_IN = (
    Method(
        name=CONTRASTIVE,
        words="contrastive EB",
        function=f"{_EXCITATION}:contrastive",
        source=f"{_EB}, section 3.3",
        is_signed=True,
        has_unit=True,
        takes_against=True,
    ),
    Method(
        name=MARGINAL,
        words="marginal EB",
        function=f"{_EXCITATION}:marginal",
        source=f"{_EB}, section 3.2",
        has_unit=True,
    ),
    Method(
        name=OBJECT,
        words="object map",
        function=f"{_EXCITATION}:object_maps",
        source="the geometric mean of a marginal map and a blurred contrastive one",
        takes_against=True,
    ),
    Method(
        name="gradient", words="gradient", function=f"{_GRADIENTS}:gradient", source="Simonyan et al., 2014"
    ),
    Method(
        name="gradient-x-input",
        words="gradient x input",
        function=f"{_GRADIENTS}:gradient_x_input",
        source="Shrikumar et al., 2016",
        is_signed=True,
    ),
    Method(
        name="grad-cam",
        words="Grad-CAM",
        function=f"{_GRADIENTS}:grad_cam",
        source="Selvaraju et al., ICCV 2017",
        place=HIDDEN_LAYER,
    ),
    Method(
        name="layer-cam",
        words="LayerCAM",
        function=f"{_GRADIENTS}:layer_cam",
        source="Jiang et al., IEEE TIP 2021",
        place=HIDDEN_LAYER,
    ),
    Method(
        name="hires-cam",
        words="HiResCAM",
        function=f"{_GRADIENTS}:hires_cam",
        source="Draelos and Carin, 2020",
        place=HIDDEN_LAYER,
    ),
    Method(
        name="occlusion",
        words="occlusion",
        function=f"{_PERTURBATION}:occlusion",
        source="Zeiler and Fergus, ECCV 2014",
        place=PICTURE,
        is_signed=True,
        module="captum.attr",
        passes=f"{_PERTURBATION}:occlusion_passes",
    ),
    Method(
        name="rise",
        words="RISE",
        function=f"{_PERTURBATION}:rise",
        source="Petsiuk et al., BMVC 2018",
        place=PICTURE,
        is_signed=True,
        passes=f"{_PERTURBATION}:rise_passes",
    ),
    Method(
        name="lrp",
        words="LRP",
        function=f"{_RELEVANCE}:lrp",
        source="Montavon et al., 2019, gamma rule; Ali et al., ICML 2022, attention",
        is_signed=True,
    ),
    Method(
        name="attention-rollout",
        words="attention rollout",
        function=f"{_RELEVANCE}:rollout",
        source="Abnar and Zuidema, ACL 2020",
        place=PICTURE,
        knows_class=False,
    ),
)
_TABLE: dict[str, Method] = {entry.name: entry for entry in _BUILT_IN}
_OWN_NAMES = frozenset(_TABLE)


def method_names() -> list[str]:
    """The names of all methods, the package's own first."""
    return [*dict.fromkeys([*_TABLE, *(point.name for point in plugins(PLUGINS))])]


def find_method(name: str) -> Method:
    """A method by its name, in any case, with or without ``-``, ``_`` and spaces: Grad CAM and gradcam are grad-cam.

    ``FILE.py:NAME`` is a method that a file registers. The file runs as Python code.

    Raises:
        ConfigurationError: there is no such method.
    """
    path, _, name_in_file = name.rpartition(":")
    if path.endswith(".py"):
        return _method_of_file(name, Path(path).resolve(), name_in_file)
    entry = _known(name)
    if entry is None:
        for point in plugins(PLUGINS):
            if _spelling(point.name) == _spelling(name):
                load_plugin(point, _register_plugin)
        entry = _known(name)
    if entry is None:
        names = method_names()
        hint = f"choose one of {', '.join(names)}"
        near = closest(name, names)
        if near:
            hint = f"{near} Else {hint}"
        raise ConfigurationError(f"there is no method {name!r}: {hint}")
    return entry


@cache  # a file runs once
def _method_of_file(name: str, path: Path, name_in_file: str) -> Method:
    """A method that a file registers, by its whole name, under which nothing else can be registered."""
    if not path.is_file():
        raise ConfigurationError(f"the file {name.rpartition(':')[0]} does not exist")
    before = dict(_TABLE)
    try:
        with guard_user_code(name), name_in_errors(name), importing_beside(path):
            execute_file(path)
        entries = [entry for entry in _TABLE.values() if before.get(entry.name) is not entry]
    finally:
        _TABLE.clear()
        _TABLE.update(before)
    for entry in entries:
        if _spelling(entry.name) == _spelling(name_in_file):
            return replace(entry, name=name, file=str(path))
    names = [entry.name for entry in entries]
    hint = "decorate a function with @ebcli.method"
    if names:
        hint = closest(name_in_file, names) or f"choose one of {', '.join(names)}"
    raise ConfigurationError(f"{name.rpartition(':')[0]} registers no method {name_in_file!r}: {hint}")


def _known(name: str) -> Method | None:
    return next((entry for entry in _TABLE.values() if _spelling(entry.name) == _spelling(name)), None)


def _spelling(name: str) -> str:
    """A name without case and separators; other marks count, as Grad-CAM++ is not Grad-CAM."""
    return re.sub("[-_ ]", "", name.casefold())


def check_methods(methods: Sequence[Method], is_input: bool) -> None:
    """Check that methods can be asked for maps.

    Args:
        methods: the methods.
        is_input: the maps are at the pixels alone.

    Raises:
        LayerError: a method has no maps at the pixels.
        ConfigurationError: a method needs a package that is missing.
    """
    for entry in methods:
        if entry.module:
            import_optional(entry.module)
        if is_input and entry.place == HIDDEN_LAYER:
            raise LayerError(
                f"{entry.name} needs a layer with channels, not the pixels: choose one with --layer"
            )


def register_method(entry: Method) -> None:
    """Add a method; one that is registered again replaces its own.

    Raises:
        ConfigurationError: the package has a method of that name.
    """
    if _spelling(entry.name) in map(_spelling, _OWN_NAMES):
        raise ConfigurationError(f"there is a method {entry.name!r} already: choose another name")
    _TABLE[entry.name] = entry


def _register_plugin(plugin: object) -> None:
    """Register an entry point that is a `Method`; a decorated function has registered itself."""
    if isinstance(plugin, Method):
        register_method(plugin)


def method(name: str, **fields: Any) -> Callable[["Function"], "Function"]:
    """Register a function as a method, for ``method=``, and for ``--method FILE.py:NAME`` if it is in a file.

    Args:
        name: what options call it.
        fields: of `Method`, such as ``is_signed=True``.

    Raises:
        ConfigurationError: the package has a method of that name.

    Examples:
        >>> import ebcli
        >>> @ebcli.method("activation", source="no class")
        ... def activation(call):
        ...     return [layer.maps_of(layer.activation.abs()) for layer in call.layers_with_gradients()]
    """

    def add(function: "Function") -> "Function":
        register_method(Method(name=name, function=function, **{"words": name, "source": "", **fields}))
        return function

    return add
