"""Which elements of a layer's output are cells of its map, told by the elements of the input that they come from."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

from ebcli.eb.facts import AFFINE, NONLINEAR
from ebcli.eb.operations import Op, Value, reachable
from ebcli.eb.paths import is_learned, mixes
from ebcli.eb.places import Places
from ebcli.eb.rules.layers import Convolution, Interpolation, ScatterAdd
from ebcli.eb.rules.moves import Move, Sort, Winner
from ebcli.layouts import Layout, extent_of, is_told_by_shape, layout_by_shape

_SAME = 1e-8  # marks that differ by less are those of one row


class Cells(Places):
    """Marks along one axis of the input, of the cells that a value holds.

    What attention mixes comes from all cells, so it has no marks. The residual connection beside it has those of the
    cell whose token is updated, and none for a class token. What each image sorts in its own way has none, either.
    """

    def marks_after(self, op: Op) -> Iterable[Tensor | None]:
        if self._depends_on_image(op) or mixes(op):
            return repeat(None)
        return super().marks_after(op)

    def _depends_on_image(self, op: Op) -> bool:
        if isinstance(op.rule, Sort):
            return op.rule.reorders(op, self)
        moves = isinstance(op.rule, (Move, ScatterAdd))
        return moves and not all(value.is_floating for value in op.inputs)

    def are_shuffled(self, value: Value) -> bool:
        """Whether each image puts the cells that a value holds in an order of its own, or leaves some out."""

        def makers_below(op: Op) -> list[Op | None]:
            return [value.maker for value in op.floating if not self.marks_of(value).any()]

        moves = (op for op in reachable([value.maker], makers_below) if isinstance(op.rule, Move))
        return any(not op.rule.joins and self._depends_on_image(op) for op in moves)

    def varying_axes(self, value: Value) -> set[int]:
        """The axes of a value along which cells vary, whatever constants are beside them."""
        placed = self.source if _keeps_axes(value, self.source) else value  # whose marks are there already
        sizes = self.marks_of(placed).shape
        return {axis for axis, size in enumerate(sizes) if size > 1 and self.differ(placed, [axis])}

    def along(self, value: Value, axis: int) -> Tensor:
        """The marks along one axis of a value, where no other one has several: 0 where there are constants alone."""
        marks = self.marks_of(value).movedim(axis, 0)
        return marks.flatten(1).amax(1).expand(value.shape[axis])


def _keeps_axes(value: Value, source: Value) -> bool:
    """Whether each axis of a value is that of a source: what lies between is elementwise, or moves along axes."""
    while value is not source:
        maker = value.maker
        if maker is None or not maker.has_one_input or maker.signal.ndim != value.ndim:
            return False
        is_in_place = value.facts.elementwise in (AFFINE, NONLINEAR)
        if not is_in_place and maker.rule.touched_axes(maker) is None:
            return False
        value = maker.signal
    return True


class Tokens(NamedTuple):
    """The cells among tokens.

    Attributes:
        grid: the shape of the map.
        cells: the token of each cell, row by row.
        total: the number of all tokens.
    """

    grid: tuple[int, ...]
    cells: tuple[int, ...]
    total: int


class InputGrid:
    """The cells of an input, and where the outputs of layers hold them.

    Args:
        ops: the recorded list.
        source: the input's value, (B, ...).

    Attributes:
        channel_axis: the axis of the input that holds the channels, told by the first layer that reads it; None if that
            does not tell. It is axis 1 of images and videos (B, C, ...), axis 2 of videos (B, T, C, H, W) whose frames
            a 2-D convolution reads, and the last axis of tokens (B, T, C) that a linear layer reads.
    """

    def __init__(self, ops: Sequence[Op], source: Value) -> None:
        self._source = source
        self._cells = {axis: Cells(source, axis) for axis in range(1, source.ndim)}
        self.channel_axis = self._find_channels(ops)

    def _find_channels(self, ops: Sequence[Op]) -> int | None:
        source = self._source
        for op in filter(is_learned, ops):
            axes = op.rule.axes(op)
            if axes is None:
                continue
            summed_axes = {axis % op.operand.ndim for axis in axes}
            varying_axes = {axis: cells.varying_axes(op.operand) for axis, cells in self._cells.items()}
            channels = [axis for axis, varying in varying_axes.items() if varying and varying <= summed_axes]
            if not channels and all(op.operand.shape[axis] == 1 for axis in summed_axes):
                channels = [axis for axis in varying_axes if source.shape[axis] == 1]
            if len(channels) == 1 and not _are_pixels(channels[0], op, source):
                return channels[0]
            if any(varying_axes.values()):
                break
        if source.ndim > 3:
            return 1
        return None

    def layout_of(self, value: Value, images: int) -> Layout | None:
        """The layout of a layer's output; None if it has no map.

        The recorded list is asked where the shape leaves a doubt, and the shape where the list does not tell.

        Args:
            value: the output's.
            images: its axis of images.
        """
        shape = value.shape[images], *value.shape[:images], *value.shape[images + 1 :]
        extent = extent_of(tuple(self._source.shape), self.channel_axis)
        by_shape = layout_by_shape(shape, extent)
        if is_told_by_shape(shape, extent):
            return by_shape
        cells = self._cells_of_map()
        if all(map(partial(_is_pooled, value), cells)):
            return None
        layout = _layout_by_list(value, cells, images)
        if layout is None and not any(of_axis.are_shuffled(value) for of_axis in cells):
            return by_shape
        return layout

    def tokens_of(self, value: Value, axis: int) -> Tokens | None:
        """The tokens along one axis of a value; None if they form no grid.

        None also if cells vary along another axis, as between the windows of attention in windows.
        """
        cells = self._cells_of_map()
        if any(of_axis.varying_axes(value) - {axis} for of_axis in cells):
            return None
        return _tokens_along(value, cells, axis)

    def _cells_of_map(self) -> list[Cells]:
        channel_axis = self.channel_axis or 1
        return [of_axis for axis, of_axis in self._cells.items() if axis != channel_axis]


def _is_pooled(value: Value, cells: Cells) -> bool:
    """Whether all elements of a value come from all cells."""
    return cells.count > 1 and bool(cells.marks_of(value).all()) and not cells.varying_axes(value)


def _layout_by_list(value: Value, cells: Sequence[Cells], images: int) -> Layout | None:
    varying_axes = [of_axis.varying_axes(value) for of_axis in cells]
    axes = sorted(set().union(*varying_axes))
    if images in axes:
        return None
    if len(axes) == 1:
        return _layout_of_tokens(value, cells, axes[0], images)
    if any(len(varying) != 1 for varying in varying_axes) or len(axes) < len(cells):
        return None
    ordered_axes = [axis for (axis,) in varying_axes]
    positions = tuple(_with_images_first(axis, images) for axis in ordered_axes)
    return Layout(positions, tuple(value.shape[axis] for axis in ordered_axes))


def _are_pixels(axis: int, op: Op, source: Value) -> bool:
    """Whether a matrix product reads the rows of pictures, whose pixels are no channels."""
    if isinstance(op.rule, Convolution) or source.ndim < 4:
        return False
    return source.shape[axis] > min(source.shape[1:])


def _layout_of_tokens(value: Value, cells: Sequence[Cells], axis: int, images: int) -> Layout | None:
    """The layout of tokens that lie along one axis: a grid, with any tokens that come from no cell beside it."""
    tokens = _tokens_along(value, cells, axis)
    if tokens is None:
        return None
    special = tokens.total - len(tokens.cells)
    has_tokens = value.ndim == 3 and axis < 2  # (B, tokens, c) or (tokens, B, c)
    if special and not has_tokens:  # the others are cells that hold constants
        return None
    return Layout((_with_images_first(axis, images),), tokens.grid, tokens.cells, special)


def _tokens_along(value: Value, cells: Sequence[Cells], axis: int) -> Tokens | None:
    marks = [of_axis.along(value, axis) for of_axis in cells]
    is_cell = torch.stack(marks).all(0)
    rows = [_rank(of_axis[is_cell]) for of_axis in marks]
    grid = tuple(int(row.max()) + 1 if row.numel() else 0 for row in rows)
    places = torch.zeros_like(rows[0])
    for row, size in zip(rows, grid, strict=True):
        places = places * size + row
    order = places.argsort()
    if places[order].tolist() != [*range(prod(grid))]:
        return None
    return Tokens(grid, tuple(is_cell.nonzero().flatten()[order].tolist()), value.shape[axis])


def _rank(marks: Tensor) -> Tensor:
    """The rows that elements are in, from their marks, which rise from row to row."""
    rising, order = marks.sort()
    steps = rising.diff() > _SAME
    ranks = torch.zeros(len(marks), dtype=torch.long, device="cpu")
    ranks[order[1:]] = steps.cumsum(0)
    return ranks


def _with_images_first(axis: int, images: int) -> int:
    """Where an axis is when that of the images is moved to the front."""
    if axis < images:
        return axis + 1
    return axis


def origins(value: Value) -> Iterator[Value]:
    """A value, and each one whose elements it holds, moved, padded, cropped or resampled; nearest first."""
    yield value
    while (maker := value.maker) and maker.has_one_input and _only_moves(maker.rule):
        value = maker.signal
        yield value


def rearranges(value: Value, operand: Value) -> bool:
    """Whether a value holds the elements of another one alone, more or fewer: by padding, cropping or resampling."""
    return value.numel != operand.numel and operand in origins(value)


def _only_moves(rule: object) -> bool:
    return isinstance(rule, (Move, Interpolation)) and not isinstance(rule, Winner)
