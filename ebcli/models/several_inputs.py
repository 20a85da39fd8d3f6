"""Networks with several inputs: what they get beside a picture, and a copy of them that fills that in."""

import inspect
import os
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL.Image import Image
from torch import Tensor
from torch.nn import Module

from ebcli.eb.inputs import NetworkInputs, argument_names
from ebcli.errors import ConfigurationError, ImageError, LayerError, first_line, plural
from ebcli.files.naming import sha256
from ebcli.models.keywords import INPUT, OF_INPUT

Tensors = dict[str, Tensor]  # by the names of the inputs

METHOD = "other_inputs"  # of networks that read their other inputs themselves

PICTURE_AXES = 3  # of one picture (C, H, W)
_BATCH_AXES = 4  # of several
_TABLE_AXES = 2
_DIGITS = 16  # of hashes, as many as those of configurations have

_GIVEN: ContextVar[Mapping[str, Tensor] | None] = ContextVar("other inputs", default=None)
_BY_POSITION = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD


class SeveralInputs:
    """The inputs of a network that has several.

    Args:
        names: those of all inputs, in the order of the call.
        picture: the name of the picture.
        example: one row of each other input, (1, ...), which stands in where only a picture is known.
        by_name: whether the network is called with names.
        has_order: whether inputs can be told by their numbers.
        columns: the names of the columns of tables, by the name of the input.
        read: the rows of the other inputs for the path of a picture; None if they are known in another way.

    Attributes:
        names, picture, columns: see above.
    """

    def __init__(
        self,
        names: Sequence[str],
        picture: str,
        example: Tensors,
        *,
        by_name: bool,
        has_order: bool,
        columns: Mapping[str, Sequence[str]] | None = None,
        read: Callable[[str], Tensors] | None = None,
    ) -> None:
        self.names = [*names]
        self.picture = picture
        self.columns = dict(columns or {})
        self._example = example
        self._by_name = by_name
        self._has_order = has_order
        self._read = read

    def with_columns(self, columns: Mapping[str, Sequence[str]]) -> "SeveralInputs":
        """The same inputs with other names of columns."""
        inputs = copy(self)
        inputs.columns = dict(columns)
        return inputs

    @property
    def pictures(self) -> list[str]:
        """The names of the other pictures, each of which has a map of its own."""
        return [name for name, a in self._example.items() if a.ndim == _BATCH_AXES and a.is_floating_point()]

    @property
    def others(self) -> Tensors:
        """A row (1, ...) of each input but the picture: those of the current image, else the example."""
        return dict(_GIVEN.get() or self._example)

    @property
    def digest(self) -> str:
        """A hash of the other inputs of the current image."""
        parts = []
        for name, row in sorted(self.others.items()):
            values = row.detach().cpu().contiguous()
            parts += [f"{name} {values.dtype} {tuple(values.shape)}".encode(), values.numpy().tobytes()]
        return sha256(b"\n".join(parts), _DIGITS)

    @contextmanager
    def given(self, others: Mapping[str, Tensor] | None, path: str | None) -> Iterator[None]:
        """Let the network get these rows (1, ...) beside each picture, in this thread; else what it reads for a path.

        Raises:
            ImageError: some are missing, or are not inputs of the network, or the network cannot read them.
        """
        if others is None and self._read is not None:
            if path is None:
                problem = (
                    "the network reads its other inputs by the path of the picture, but this one has none"
                )
                raise ImageError(f"{problem}: name a file, or pass all inputs to explain()")
            others = self._read(path)
        if others is None or others.keys() != self._example.keys():
            problem = f"the network also needs {', '.join(self._example)}"
            raise ImageError(f"{problem}: pass a tuple, or a mapping of names, that has all of its inputs")
        token = _GIVEN.set(others)
        try:
            yield
        finally:
            _GIVEN.reset(token)

    def call(self, images: Tensor) -> Tensors | tuple[Tensor, ...]:
        """What the network is called with for pictures (B, C, ...): names, or all inputs in order."""
        tensors = {}
        others = self.others
        for name in self.names:
            if name == self.picture:
                tensors[name] = images
                continue
            row = others[name].to(images.device)
            if row.is_floating_point():
                row = row.to(images.dtype)
            tensors[name] = row.expand(len(images), *row.shape[1:]).clone()
        return tensors if self._by_name else tuple(tensors.values())

    def layer_of(self, name: str) -> str:
        """What the engine calls an input as a layer."""
        if self._by_name:
            return OF_INPUT + name
        return f"{OF_INPUT}{self.names.index(name)}"

    def find_layer(self, choice: str) -> str:
        """The layer that an input is, from its name or number: ``"input"`` for the picture.

        Raises:
            LayerError: there is no such input.
        """
        name = choice.removeprefix(OF_INPUT)
        if name not in self.names and self._has_order and name.isdecimal():
            name = dict(enumerate(self.names)).get(int(name), name)
        if name == self.picture:
            return INPUT
        if name not in self.names:
            raise LayerError(f"the network has no input {name!r}: choose one of {', '.join(self.names)}")
        return self.layer_of(name)

    def picture_at(self, layer: str) -> str | None:
        """The name of the other picture that a layer is; None if it is none."""
        return next((name for name in self.pictures if self.layer_of(name) == layer), None)

    def fill_in(self, net: Module) -> Module:
        """A copy of the network that gets the other inputs where it is called with a picture alone.

        It shares layers, parameters and buffers with the network.
        """
        kind = type(type(net).__name__, (_FilledIn, type(net)), {})
        result: Module = object.__new__(kind)
        vars(result).update(vars(net), training=False, several_inputs=self)
        return result


class _FilledIn(Module):
    """A network that fills in its other inputs."""

    several_inputs: SeveralInputs

    def forward(self, *inputs: Any, **named: Any) -> Any:
        forward = super().forward
        if len(inputs) != 1 or named:
            return forward(*inputs, **named)
        tensors = self.several_inputs.call(inputs[0])
        if isinstance(tensors, dict):
            return forward(**tensors)
        return forward(*tensors)


class Rows(NamedTuple):
    """Several inputs, taken apart.

    Attributes:
        inputs: which ones they are.
        pictures: the picture (C, H, W) of each row, or an image that is not preprocessed yet.
        others: the other inputs (1, ...) of each row, by name.
        is_batch: whether they had an axis of rows.
    """

    inputs: SeveralInputs
    pictures: list[Any]
    others: list[Tensors]
    is_batch: bool

    @classmethod
    def of(cls, net: Any, values: Any, columns: Any = None) -> "Rows":
        """The rows of several inputs.

        Args:
            net: the network, or a function.
            values: a tuple of tensors, or a mapping of their names to tensors: a batch of each, or one row of each,
                of which the picture is (C, H, W). Numbers and arrays will do for tensors, and for the picture of one
                row, an image that is not preprocessed yet.
            columns: the names of the columns of the only table, or a mapping of the names of tables to these.

        Raises:
            ConfigurationError: these are no tensors, differ in their number of rows, or columns fit no table.
        """
        by_input, by_name = by_names(net, values)
        tensors = {name: as_tensor(name, value) for name, value in by_input.items() if not is_image(value)}
        images = {name: value for name, value in by_input.items() if name not in tensors}
        is_batch = False
        if images:
            picture = _only_picture(images, tensors)
            pictures = [*images.values()]
            tensors = {name: a[None] for name, a in tensors.items()}
        else:
            picture = NetworkInputs(tensors).picture
            is_batch = tensors[picture].ndim != PICTURE_AXES
            if not is_batch:
                tensors = {name: a[None] for name, a in tensors.items()}
            _check_counts(tensors)
            pictures = [*tensors.pop(picture)]
        others = [{name: a[i : i + 1] for name, a in tensors.items()} for i in range(len(pictures))]
        inputs = SeveralInputs(
            [*by_input],
            picture,
            others[0],
            by_name=by_name,
            has_order=not isinstance(values, Mapping),
            columns=_names_of_columns(columns, tensors),
        )
        return cls(inputs, pictures, others, is_batch)


def is_image(value: Any) -> bool:
    """Whether a value is an image that is not preprocessed yet: a file, a Pillow image, or an array of pixels."""
    if isinstance(value, (str, os.PathLike, Image)) or hasattr(value, "read"):
        return True
    if isinstance(value, Tensor):
        return value.dtype == torch.uint8 and value.ndim == PICTURE_AXES
    if not isinstance(value, np.ndarray):
        return False
    return value.ndim == PICTURE_AXES or (value.ndim == PICTURE_AXES - 1 and value.dtype == np.uint8)


def as_tensor(name: str, value: Any) -> Tensor:
    """An input that is no image as a tensor.

    Raises:
        ConfigurationError: it is no tensor, and neither an array nor numbers.
    """
    if isinstance(value, Tensor):
        return value
    try:
        array = np.asarray(value)
        if array.dtype == np.float64:
            array = array.astype(np.float32)
        tensor = torch.as_tensor(array)
    except (ValueError, TypeError) as error:
        problem = f"the input {name} is {reprlib.repr(value)}"
        raise ConfigurationError(f"{problem}: pass a tensor, an array or numbers, or an image") from error
    if tensor.ndim >= PICTURE_AXES:
        problem = f"the input {name} has {tensor.ndim} axes, but is no tensor"
        raise ConfigurationError(f"{problem}: pass one image, or a tensor of preprocessed ones (B, C, H, W)")
    return tensor


def _only_picture(images: Mapping[str, Any], tensors: Tensors) -> str:
    """The name of the only picture. Raises ConfigurationError if there are others."""
    names = [*images, *(name for name, a in tensors.items() if a.ndim >= PICTURE_AXES)]
    if len(names) > 1:
        problem = f"{' and '.join(names)} look like pictures, of which only one can be an image"
        raise ConfigurationError(f"{problem}: pass all of them as tensors (C, H, W), preprocessed")
    if tensors:
        NetworkInputs(tensors)  # which checks the numbers
    return names[0]


def _check_counts(tensors: Tensors) -> None:
    """Raise ConfigurationError if inputs (B, ...) differ in their number of rows, or have none."""
    counts = {name: len(a) if a.ndim else 0 for name, a in tensors.items()}
    if len({*counts.values()}) > 1 or 0 in counts.values():
        sizes = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise ConfigurationError(f"the inputs differ in their number of images ({sizes}): pass a row of each")


def _names_of_columns(columns: Any, others: Tensors) -> dict[str, Sequence[str]]:
    """The names of columns, by input, for the other inputs (B, ...)."""
    tables = {name: a.shape[1] for name, a in others.items() if a.ndim == _TABLE_AXES}
    if columns is None:
        return {}
    if not isinstance(columns, Mapping):
        if len(tables) != 1:
            names = ", ".join(tables) or "no table"
            raise ConfigurationError(
                f"columns are for one table, but there are {names}: pass a mapping of inputs"
            )
        columns = dict.fromkeys(tables, columns)
    for name, column_names in columns.items():
        if name not in tables:
            problem = f"columns name the input {name!r}, which is no table (B, columns)"
            raise ConfigurationError(f"{problem}: choose one of {', '.join(tables) or 'none'}")
        if len(column_names) != tables[name]:
            given = plural(len(column_names), "name")
            raise ConfigurationError(f"columns has {given}, but {name} has {plural(tables[name], 'column')}")
    return {name: [*map(str, column_names)] for name, column_names in columns.items()}


def with_own_inputs(net: Module) -> Module:
    """A network that reads its other inputs itself as one that fills them in; any other network unchanged.

    Raises:
        ConfigurationError: it does not read what it needs.
    """
    read = getattr(net, METHOD, None)
    if not callable(read) or inputs_of(net) is not None:
        return net
    try:
        others = read(None)
    except Exception as error:  # code of users
        problem = f"{METHOD}(None) failed ({type(error).__name__}: {first_line(error)})"
        raise ConfigurationError(
            f"{problem}: for None, return an example of each other input, such as torch.zeros(4)"
        ) from error
    arguments = argument_names(net)
    by_name = isinstance(others, Mapping) or len(arguments) > _count(others)
    if isinstance(others, Mapping):
        picture = next((name for name in arguments if name not in others), "image")
        names = [picture, *others]
    else:
        names = [*map(str, range(1 + _count(others)))]
        if by_name:
            names = arguments[: len(names)]
        picture = names[0]

    def rows(path: str) -> Tensors:
        """The other inputs of the picture at a path."""
        try:
            return _as_rows(read(path), names[1:])
        except Exception as error:  # code of users
            raise ImageError(f"{METHOD}() failed ({type(error).__name__}: {first_line(error)})") from error

    example = _as_rows(others, names[1:])
    columns = _names_of_columns(getattr(net, "columns", None), example)
    inputs = SeveralInputs(
        names,
        picture,
        example,
        by_name=by_name,
        has_order=not isinstance(others, Mapping),
        columns=columns,
        read=rows,
    )
    return inputs.fill_in(net)


def _count(others: Any) -> int:
    return len(others) if isinstance(others, tuple) else 1


def _as_rows(others: Any, names: Sequence[str]) -> Tensors:
    """What a network read, as tensors (1, ...) by name."""
    if not isinstance(others, Mapping):
        values = others if isinstance(others, tuple) else (others,)
        others = dict(zip(names, values, strict=True))
    return {name: torch.as_tensor(value)[None] for name, value in others.items()}


def inputs_of(net: Module) -> SeveralInputs | None:
    """The inputs of a network that fills in all but the picture; None for other networks."""
    return getattr(net, "several_inputs", None) if isinstance(net, _FilledIn) else None


def by_names(net: Any, inputs: Any) -> tuple[dict[str, Any], bool]:
    """Inputs of a network by the names of its arguments, or by number if it does not name them.

    Args:
        net: the network, or a function.
        inputs: a mapping of names to inputs, or a tuple of inputs.

    Returns:
        The inputs, and whether the network can be called with these names.
    """
    if isinstance(inputs, Mapping):
        return dict(inputs), True
    filled_in = inputs_of(net)
    if filled_in is not None and len(filled_in.names) == len(inputs):
        return dict(zip(filled_in.names, inputs, strict=True)), True
    names = argument_names(net)[: len(inputs)]
    if len(names) == len(inputs):
        return dict(zip(names, inputs, strict=True)), True
    return {str(number): value for number, value in enumerate(inputs)}, False


def takes_several(net: Any) -> bool:
    """Whether a network, or a function, cannot be called with one tensor."""
    try:
        parameters = inspect.signature(getattr(net, "forward", net)).parameters.values()
    except (TypeError, ValueError):  # some that are compiled
        return False
    needed = [
        parameter
        for parameter in parameters
        if parameter.kind in _BY_POSITION and parameter.default is inspect.Parameter.empty
    ]
    return len(needed) > 1
