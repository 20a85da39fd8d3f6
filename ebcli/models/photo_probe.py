"""Where a photo enters the text part of a vision-language network, and where in the photo each of its tokens lies.

Nothing is asked of the configuration. Three experiments tell:

1. The first call of a module that gets something of the photo and something of the text is the entry: another photo
   and another text change its arguments. The rows that another photo changes are the photo's tokens.
2. The processor gets black, white and two ramps, so each number that it makes tells where in the photo it lies.
3. Where every module that keeps the shape of its input passes it on as it is, no token learns of another one. Then
   slopes tell which token each of these numbers reaches.

An experiment with the network as it is checks them: a token must change most when the photo changes in its box.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ebcli.eb.torch_private import tree_flatten, tree_unflatten
from ebcli.errors import ConfigurationError
from ebcli.models.running import ReachedLayer

Inputs = dict[str, Any]  # of a network, by name
Reader = Callable[[Tensor], Inputs]  # from a photo (3, H, W), from 0 to 255, to the network's inputs

_BLOTCHES = 24  # of noise, along a side
_TRIES = 12  # tokens that are checked
_LEAST_HITS = 0.5  # of them, those that change most when the photo changes in their boxes
_LARGEST_BOX = 0.3  # of the photo, on average: with larger ones, the check passes whatever the boxes are
_LEAST_CLEAR = 0.9  # of the processor's numbers, those that reach one token only
_ROUNDING = 0.05  # of slopes whose quotient is a whole number
_EDGE = 0.002  # of the photo's size
_WHITE = 0.5  # of the contrast between black and white; what has less is padding


class Call(NamedTuple):
    """A call of a module.

    Attributes:
        module: its name.
        number: how many calls of it come before.
    """

    module: str
    number: int


class Fingerprint(NamedTuple):
    """What tells a tensor from another one."""

    is_floating: bool
    shape: torch.Size
    total: float
    size: float

    @classmethod
    def of(cls, leaf: Any) -> "Fingerprint | None":
        """That of a tensor; None of anything else."""
        if not isinstance(leaf, Tensor) or leaf.numel() < 2:
            return None
        numbers = leaf.detach().double().nan_to_num(0, 0, 0)
        return cls(leaf.is_floating_point(), leaf.shape, float(numbers.sum()), float(numbers.abs().sum()))


class TracedCall(NamedTuple):
    """A call of a module, and a fingerprint of each of its arguments."""

    call: Call
    arguments: list[Fingerprint | None]

    def differing(self, other: "TracedCall") -> list[int]:
        """The arguments that are others in another forward pass."""
        pairs = enumerate(zip(self.arguments, other.arguments, strict=False))
        return [index for index, (a, b) in pairs if a != b and a is not None and b is not None]

    def floating(self, other: "TracedCall") -> list[int]:
        """Those of them that are of floating-point numbers."""
        return [index for index in self.differing(other) if self.arguments[index].is_floating]  # type: ignore[union-attr]


class PhotoEntry(NamedTuple):
    """Where a photo enters.

    Attributes:
        call: of the module.
        photo: which of its arguments, flat, have the photo's tokens as rows.
        text: which have tokens of the text alone.
        embeddings: modules that make tokens of the text later.
    """

    call: Call
    photo: list[int]
    text: list[int]
    embeddings: list[str]


class PhotoTokens(NamedTuple):
    """The photo's tokens where it enters.

    Attributes:
        rows: of each argument with such tokens, whether a row (n,) is one of them.
        boxes: of all tokens, argument after argument, (N, 4): left, top, right and bottom as shares of the photo's
            size; NaN of tokens without a place, such as class tokens and padding.
    """

    rows: list[Tensor]
    boxes: Tensor


def cast(net: Any, inputs: Inputs) -> Inputs:
    """Inputs in the precision of a network."""
    return {
        name: value.to(net.dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in inputs.items()
    }


@contextmanager
def before_call(net: nn.Module, call: Call, hook: Callable[[list[Any]], None]) -> Iterator[None]:
    """Let a hook change the flat arguments of a call, in place."""
    remaining = call.number

    def change(_module: nn.Module, args: Any, kwargs: Any) -> Any:
        nonlocal remaining
        remaining -= 1
        if remaining != -1:
            return None
        leaves, spec = tree_flatten((args, kwargs))
        hook(leaves)
        return tree_unflatten(leaves, spec)

    handle = net.get_submodule(call.module).register_forward_pre_hook(change, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _arguments(net: nn.Module, inputs: Inputs, call: Call, positions: Sequence[int]) -> list[Tensor]:
    """Some arguments of a call, where the forward pass ends, as rows (n, D)."""
    rows: list[Tensor] = []

    def keep(leaves: list[Any]) -> None:
        rows.extend(leaves[position].flatten(0, -2) for position in positions)
        raise ReachedLayer

    with before_call(net, call, keep), suppress(ReachedLayer):
        net(**cast(net, inputs))
    return rows


def _trace(net: nn.Module, inputs: Inputs) -> list[TracedCall]:
    """The calls of all modules in a forward pass."""
    trace: list[TracedCall] = []
    counts = Counter[str]()
    names = {module: name for name, module in net.named_modules()}

    def note(module: nn.Module, args: Any, kwargs: Any) -> None:
        name = names[module]
        prints = [*map(Fingerprint.of, tree_flatten((args, kwargs))[0])]
        trace.append(TracedCall(Call(name, counts[name]), prints))
        counts[name] += 1

    handles = [module.register_forward_pre_hook(note, with_kwargs=True) for module in names]
    try:
        net(**cast(net, inputs))
    finally:
        for handle in handles:
            handle.remove()
    return trace


@torch.no_grad()
def find_entry(
    net: nn.Module, read: Reader, size: tuple[int, int], word: int
) -> tuple[PhotoEntry, PhotoTokens]:
    """Where photos enter, and the tokens of photos of one size (width, height), which have been checked.

    Behind a resampler, whose tokens look at the whole photo, the entry is the last place in front of it where tokens
    have places of their own.

    Args:
        net: the network.
        read: makes its inputs of a photo.
        size: of photos, width and height.
        word: a token that is not the last one of their text.

    Raises:
        ConfigurationError: no place was found, or the check failed.
    """
    base = read(_noise(size, 0))
    other_photo = read(_noise(size, 1))
    traces = [_trace(net, inputs) for inputs in (base, other_photo, _with_last_token(base, word))]
    entry = _first_with_both(traces, cast(net, base))
    tokens = find_tokens(net, read, size, entry)
    if tokens is None:
        entry, tokens = _earlier(net, read, size, entry, traces, (base, other_photo))
    _check(net, read, size, entry, tokens)
    return entry, tokens


def _noise(size: tuple[int, int], seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    # which stays when the photo is shrunk
    coarse = 255 * torch.rand(1, 3, _BLOTCHES, _BLOTCHES, generator=generator)
    return F.interpolate(coarse, size[::-1], mode="bilinear")[0]


def _with_last_token(inputs: Inputs, token: int) -> Inputs:
    changed = {name: ids.clone() for name, ids in inputs.items() if name.endswith("input_ids")}
    for ids in changed.values():
        ids[0, -1] = token
    return inputs | changed


def _are_alike(calls: Sequence[TracedCall]) -> bool:
    """Whether forward passes call the same module."""
    return len({traced.call for traced in calls}) == 1


def _first_with_both(traces: Sequence[list[TracedCall]], inputs: Inputs) -> PhotoEntry:
    """The entry, by the traces of some inputs, of those with another photo, and of those with another text."""
    raw = {*map(Fingerprint.of, inputs.values())}
    for base, photo, text in takewhile(_are_alike, zip(*traces, strict=False)):
        of_photo = base.floating(photo)
        reads_both = of_photo and base.differing(text)
        if reads_both and raw.isdisjoint(base.arguments[index] for index in of_photo):
            of_text = [index for index in base.floating(text) if index not in of_photo]
            return PhotoEntry(base.call, of_photo, of_text, _embeddings(traces, base.call))
    raise ConfigurationError("no part of the network reads both the photo and the text: choose another one")


def _embeddings(traces: Sequence[list[TracedCall]], entry: Call) -> list[str]:
    """The modules that get ids of the text behind the entry, and nothing else."""
    pairs = [*zip(traces[0], traces[2], strict=False)]
    first = [base.call for base, _ in pairs].index(entry)
    names = [
        base.call.module
        for base, text in pairs[first:]
        if len(base.arguments) == 1 and base.differing(text) and not base.floating(text)
    ]
    return [*dict.fromkeys(names)]


@torch.no_grad()
def find_tokens(net: nn.Module, read: Reader, size: tuple[int, int], entry: PhotoEntry) -> PhotoTokens | None:
    """The tokens of photos of one size (width, height); None if most of what they read reaches several of them.

    Raises:
        ConfigurationError: no token has a place.
    """
    photos = [read(_noise(size, seed)) for seed in (0, 1)]
    one, other = (_arguments(net, inputs, entry.call, entry.photo) for inputs in photos)
    rows = [(a != b).any(1) for a, b in zip(one, other, strict=True)]
    where = _coordinates(read, size)
    inputs = photos[0]
    for name in where:
        inputs[name] = inputs[name].clone().requires_grad_()
    with torch.enable_grad():
        arguments = _alone(net, inputs, entry)
        photo_rows = [argument[is_photo] for argument, is_photo in zip(arguments, rows, strict=True)]
    numbers = [inputs[name] for name in where]
    places = torch.cat([*where.values()])
    boxes = []
    for tokens in photo_rows:
        token = _tokens_reached(tokens, numbers, places.isfinite().all(1))
        if token is None:
            return None
        boxes.append(_boxes(token, places, len(tokens)))
    result = PhotoTokens(rows, torch.cat(boxes))
    if not result.boxes.isfinite().any():
        problem = "no part of the photo has a token of its own"
        raise ConfigurationError(f"{problem}: the photo is too small or too narrow for the network")
    return result


def _coordinates(read: Reader, size: tuple[int, int]) -> dict[str, Tensor]:
    """Where the numbers of each input that is made of the photo lie in it: x and y (n, 2) as shares; NaN of padding."""
    x, y = torch.meshgrid(*((torch.arange(side) + 0.5) / side for side in size), indexing="xy")
    pictures = (torch.zeros_like(x), torch.ones_like(x), x, y)
    black, white, *ramps = (read(255 * picture.expand(3, *x.shape)) for picture in pictures)
    where = {}
    for name, low in black.items():
        if not (isinstance(low, Tensor) and low.is_floating_point()) or torch.equal(low, white[name]):
            continue
        contrast = (white[name] - low).double()
        is_inside = contrast.abs() > _WHITE * contrast.abs().max()
        shares = [((ramp[name] - low) / contrast).where(is_inside, torch.nan) for ramp in ramps]
        where[name] = torch.stack(shares, -1).reshape(-1, 2).cpu()
    if not where:
        problem = "the processor makes the same of a black photo and a white one"
        raise ConfigurationError(f"{problem}, so parts of photos cannot be traced; choose another model")
    return where


def _alone(net: nn.Module, inputs: Inputs, entry: PhotoEntry) -> list[Tensor]:
    """The arguments with photo tokens, of which none has learned of another one."""
    handles = [module.register_forward_hook(_pass_by, with_kwargs=True) for module in net.modules()]
    try:
        return _arguments(net, inputs, entry.call, entry.photo)
    finally:
        for handle in handles:
            handle.remove()


def _pass_by(_module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
    """In place of a module's output, its input, if that has the same shape."""
    signal = next((leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)), None)
    leaves, spec = tree_flatten(output)
    result = leaves[0] if leaves else None
    if signal is None or not isinstance(result, Tensor):
        return None
    if (result.shape, result.dtype) != (signal.shape, signal.dtype):
        return None
    return tree_unflatten([signal.contiguous(), *leaves[1:]], spec)


def _tokens_reached(tokens: Tensor, numbers: Sequence[Tensor], is_inside: Tensor) -> Tensor | None:
    """The token that each number of the inputs reaches; -1 of those that reach none, or several, or lie in padding.

    Args:
        tokens: (n, D), which depend on the numbers.
        numbers: the inputs.
        is_inside: (N,), which of all numbers lie in the photo.

    Returns:
        (N,), or None if most numbers reach several tokens.
    """
    count = len(tokens)
    if not (tokens.requires_grad and count):
        return None
    direction = torch.randn(tokens.shape, generator=torch.Generator().manual_seed(0)).to(tokens)

    def slopes(weights: Tensor) -> Tensor:
        weighted = direction * weights.to(direction)[:, None]
        gradients = torch.autograd.grad(tokens, numbers, weighted, retain_graph=True, materialize_grads=True)
        return torch.cat([gradient.flatten() for gradient in gradients]).double()

    # a token's number in binary, one digit at a time: it is doubled where that digit is 1
    index = torch.arange(count)
    baseline = slopes(torch.ones(count))
    is_read = is_inside.to(baseline.device) & (baseline.abs() > 1e-9 * baseline.abs().max())
    number = torch.zeros_like(baseline, dtype=torch.long)
    is_clear = is_read.clone()
    for place in range((count - 1).bit_length()):
        quotient = slopes(1 + (index >> place & 1)) / baseline
        digit = quotient.round()
        is_clear &= ((quotient - digit).abs() < _ROUNDING) & ((digit == 1) | (digit == 2))
        number += (digit == 2).long() << place
    if not is_clear.any() or is_clear.sum() < _LEAST_CLEAR * is_read.sum():
        return None
    return number.where(is_clear & (number < count), -1).cpu()


def _boxes(token: Tensor, places: Tensor, count: int) -> Tensor:
    """The rectangles (count, 4) of tokens, each around the numbers that reach it.

    Args:
        token: (N,), which token each number reaches; -1 for none.
        places: (N, 2), where each number lies.
        count: of tokens.
    """
    places = places[token >= 0]
    token = token[token >= 0]
    sums = torch.zeros(count, 2, dtype=torch.float64)
    counts = token.bincount(minlength=count)[:, None]
    centers = sums.index_add(0, token, places) / counts
    variances = sums.index_add(0, token, (places - centers[token]) ** 2) / counts
    index = token[:, None].expand(-1, 2)
    lowest, highest = (
        sums.scatter_reduce(0, index, places, kind, include_self=False) for kind in ("amin", "amax")
    )
    # n numbers with the distance d have the variance v = d² (n² - 1) / 12 and the span s = d (n - 1), so that
    # n d = (s + 12 v / s) / 2
    spans = highest - lowest
    halves = (spans + 12 * variances / spans) / 4
    boxes = torch.cat([centers - halves, centers + halves], 1)
    for edge in (0, 1):  # interpolation moves edges
        boxes = boxes.where((boxes - edge).abs() > _EDGE, edge)
    return boxes.clamp(0, 1).where(spans.gt(0).all(1, keepdim=True), torch.nan)


def _earlier(
    net: nn.Module,
    read: Reader,
    size: tuple[int, int],
    entry: PhotoEntry,
    traces: Sequence[list[TracedCall]],
    inputs: tuple[Inputs, Inputs],
) -> tuple[PhotoEntry, PhotoTokens]:
    """The last place in front of an entry that all of the photo passes, and where tokens have places of their own."""
    base, other = inputs
    wanted = _arguments(net, other, entry.call, entry.photo)
    calls = [before.call for before in traces[0]]
    pairs = [*zip(*traces[:2], strict=False)][: calls.index(entry.call)]
    seen = []
    for before, after in reversed(pairs):
        positions = before.floating(after)
        signature = [before.arguments[position] for position in positions]
        if len(positions) != 1 or signature in seen:
            continue
        seen.append(signature)
        candidate = PhotoEntry(before.call, positions, [], _embeddings(traces, before.call))
        (value,) = _arguments(net, other, candidate.call, positions)
        with before_call(net, candidate.call, _replacement(positions[0], value)):
            arguments = _arguments(net, base, entry.call, entry.photo)
        if not all(
            torch.allclose(a, b, atol=1e-4, rtol=1e-3) for a, b in zip(arguments, wanted, strict=True)
        ):
            continue
        tokens = find_tokens(net, read, size, candidate)
        if tokens is not None:
            return candidate, tokens
    problem = "parts of the photo have no tokens of their own in the network"
    raise ConfigurationError(
        f"{problem}, which mixes them before its text part reads them: choose another one"
    )


def _replacement(position: int, rows: Tensor) -> Callable[[list[Any]], None]:
    """A hook that replaces an argument."""

    def replace(leaves: list[Any]) -> None:
        leaves[position] = rows.reshape(leaves[position].shape)

    return replace


def _check(
    net: nn.Module, read: Reader, size: tuple[int, int], entry: PhotoEntry, tokens: PhotoTokens
) -> None:
    """Raise ConfigurationError unless tokens change most when the photo changes in their own boxes."""
    boxes = tokens.boxes
    known = boxes.isfinite().all(1).nonzero()[:, 0]
    sides = boxes[known, 2:] - boxes[known, :2]
    if sides.prod(1).mean() > _LARGEST_BOX:
        raise ConfigurationError("the network reads the photo as hardly any tokens: choose another one")
    photo = _noise(size, 2)

    def tokens_of(photo: Tensor) -> list[Tensor]:
        arguments = zip(_arguments(net, read(photo), entry.call, entry.photo), tokens.rows, strict=True)
        return [row for argument, is_photo in arguments for row in argument[is_photo].float()]

    generator = torch.Generator().manual_seed(0)
    tried = known[torch.randperm(len(known), generator=generator)[:_TRIES]]
    before = tokens_of(photo)
    changes = []
    for box in boxes[tried] * torch.tensor([*size, *size]):
        left, top, right, bottom = box.round().int().tolist()
        changed = photo.clone()
        inside = slice(None), slice(top, max(bottom, top + 1)), slice(left, max(right, left + 1))
        changed[inside] = (changed[inside] + 127) % 255
        after = tokens_of(changed)
        changes.append([float((after[index] - before[index]).norm()) for index in tried])
    strongest = tried[torch.tensor(changes).argmax(0)]  # the box whose change was largest for each token
    hits = sum(_meet(boxes[token], boxes[box]) for token, box in zip(tried, strongest, strict=True))
    if hits < _LEAST_HITS * len(tried):
        problem = f"where the photo's tokens lie is unclear: a check told it for {hits} of {len(tried)} only"
        raise ConfigurationError(f"{problem}; choose another network")


def _meet(a: Tensor, b: Tensor) -> bool:
    """Whether the center of one of two boxes is in the other one."""
    corners = torch.stack([a, b]).unflatten(1, (2, 2))  # box, corner, axis
    centers = corners.mean(1).flip(0)
    inside = (corners[:, 0] <= centers + _EDGE) & (centers <= corners[:, 1] + _EDGE)
    return bool(inside.all(1).any())
