"""Which elements of a layer's output are cells of its map, told by the elements of the input that they come from."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import repeat
from math import inf, prod
from typing import NamedTuple

import torch
from torch import Tensor

from ebcli.eb.facts import AFFINE, NONLINEAR
from ebcli.eb.operations import Op, Value, reachable
from ebcli.eb.paths import is_learned, mixes
from ebcli.eb.places import Places
from ebcli.eb.rules.layers import Convolution, Interpolation, ScatterAdd
from ebcli.eb.rules.moves import ChannelMove, Move, Sort, Winner
from ebcli.layouts import Layout, extent_of, is_ambiguous, is_told_by_shape, layout_by_shape

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
        self._ops = ops
        self._reordered_at = next((op.index for op in ops if self._may_reorder(op)), inf)
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

        The recorded list is asked where the shape leaves a doubt, or where an operation may have changed the order of
        cells. The shape is asked where the list does not tell, and the first layer reads the axes in their order.

        Args:
            value: the output's.
            images: its axis of images.
        """
        shape = value.shape[images], *value.shape[:images], *value.shape[images + 1 :]
        extent = extent_of(tuple(self._source.shape), self.channel_axis)
        by_shape = layout_by_shape(shape, extent)
        if value.made_at < self._reordered_at and is_told_by_shape(shape, extent):
            return by_shape
        cells = self._cells_of_map()
        if all(map(partial(_is_pooled, value), cells)):
            return None
        layout = _layout_by_list(value, cells, images)
        if layout is not None:
            return layout
        if self._is_reordered or any(of_axis.are_shuffled(value) for of_axis in cells):
            return None
        if by_shape is None or is_ambiguous(shape, extent) or not _agrees(by_shape, value, cells, images):
            return None
        return by_shape

    def _may_reorder(self, op: Op) -> bool:
        if isinstance(op.rule, ChannelMove):
            return op.signal.ndim != self._source.ndim  # without its channels, it moves cells
        return not op.rule.keeps_order

    @cached_property
    def _is_reordered(self) -> bool:
        """Whether the first layer reads the axes of the input in another order, or backwards."""
        for op in filter(is_learned, self._ops):
            layout = _layout_by_list(op.operand, self._cells_of_map(), 0)
            if layout is not None:
                return list(layout.axes) != sorted(layout.axes) or bool(layout.mirrored)
        return False

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


def _agrees(layout: Layout, value: Value, cells: Sequence[Cells], images: int) -> bool:
    """Whether no cells are known to vary along other axes than those of a layout, whose tokens are not looked at."""
    if layout.tokens is not None:
        return True
    for of_axis, own_axis in zip(cells, layout.axes, strict=True):
        varying_axes = {_with_images_first(axis, images) for axis in of_axis.varying_axes(value)}
        if varying_axes and varying_axes.intersection(layout.axes) != {own_axis}:
            return False
    return True


def _layout_by_list(value: Value, cells: Sequence[Cells], images: int) -> Layout | None:
    axes = set().union(*(of_axis.varying_axes(value) for of_axis in cells))
    if not axes or images in axes:
        return None
    if len(axes) == 1 and len(cells) > 1:
        (axis,) = axes
        return _layout_of_tokens(value, cells, axis, images)
    map_axes = _axes_of_map(value, cells, images)
    if map_axes is None:
        return None
    mirrored = (index for index, axis in enumerate(map_axes) if _is_mirrored(cells[index].along(value, axis)))
    return Layout(
        tuple(_with_images_first(axis, images) for axis in map_axes),
        tuple(value.shape[axis] for axis in map_axes),
        mirrored=tuple(mirrored),
    )


def _axes_of_map(value: Value, cells: Sequence[Cells], images: int) -> list[int] | None:
    """The axis of a value that holds each axis of the map; None if one is unknown."""
    varying_axes = [of_axis.varying_axes(value) for of_axis in cells]
    single_axes = [axis for axis, size in enumerate(value.shape) if size == 1 and axis != images]
    map_axes: list[int] = []
    for index, of_axis in enumerate(cells):
        own_axes = varying_axes[index].difference(*varying_axes[:index], *varying_axes[index + 1 :])
        if len(own_axes) == 1:
            map_axes += own_axes
        elif varying_axes[index] or not single_axes or not of_axis.marks_of(value).all():
            return None
        else:  # what comes from all cells along an axis is a single one, on any axis of size 1
            map_axes.append(single_axes.pop())
    return map_axes


def _is_mirrored(marks: Tensor) -> bool:
    """Whether the marks along an axis fall; at the ends, padding may have marks from anywhere."""
    steps = marks[marks != 0].diff()
    return int((steps < -_SAME).sum()) > int((steps > _SAME).sum())


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
