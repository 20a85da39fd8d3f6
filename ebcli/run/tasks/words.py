"""Words: the subjects are those of the answer of a vision-language model to a question about the image."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from ebcli.datatypes.explanation import Box, Explanation, Map, Subject
from ebcli.eb import excitation_backprop
from ebcli.errors import ConfigurationError, closest
from ebcli.models.keywords import WORDS
from ebcli.models.running import ReachedLayer, hook_modules
from ebcli.run.plan_parts import WordOptions
from ebcli.run.tasks.task import ImageRequest, Task, register

if TYPE_CHECKING:
    from ebcli.models.sources.vision_language import QuestionAnswer, VisionLanguage
    from ebcli.run.reading import NetworkInput

LAYER = "photo tokens"  # of the decoder

Token = tuple[int, int]  # its place in the answer, and its number in the vocabulary
_WORDS = re.compile(r"\w+(?:['’.-]\w+)*")
# which have no map unless they are asked for
_FUNCTION_WORDS = frozenset(
    "a an the this that these those there here it its he him his she her they them their i me my you your "
    "we us our who whom whose which what is am are was were be been being has have had do does did can could "
    "may might must shall should will would of in on at to from by with for about into onto upon over as than "
    "and or but nor so if then because while when where how not no yes also just very some any each every both "
    "all such".split()
)
_INSIDE = 0.75  # of what is white in the photo; padding is darker
_EDGE = 0.002  # of the photo's size, by which interpolation moves its edges
_MOST_CELLS = 512  # of a map, along a side
TokenReader = Callable[[Tensor], Tensor]  # from a photo (3, H, W), from 0 to 255, to its tokens (n, D)


class DecoderInput(NamedTuple):
    """What the first layer of a decoder gets.

    Attributes:
        call: all its arguments.
        text, photo: the tokens (1, n, D) of the text and of the photo.
        is_photo: which of the tokens are the photo's; None if the photo is no part of the decoder's text.
    """

    call: inspect.BoundArguments
    text: Tensor
    photo: Tensor
    is_photo: Tensor | None


class AnswerNetwork(nn.Module):
    """A network as a function of the photo's pixels: the logits (1, N) of tokens, each at its place in the answer.

    ``merge_point`` is a layer in front of the decoder: all that it reads, as the tokens of the text, the mean token of
    the photo, and each of the photo's tokens less this mean. What all have in common explains no place and no content,
    as a bias does not, so it is a token of its own.

    Attributes:
        logits: those of all tokens at each place of the answer, (places, vocabulary).
        texts: how many of the tokens at ``merge_point`` are of the text.
        blocks: those of the encoder.
    """

    def __init__(self, model: VisionLanguage, exchange: QuestionAnswer, tokens: Sequence[Token] = ()) -> None:
        super().__init__()
        self.net = model.net
        self.merge_point = nn.Identity()
        self._other_inputs = exchange.other_inputs
        self._count = len(exchange.ids)
        self._tokens = tokens
        self._image_token = model.image_token
        self.logits = torch.empty(0)
        self.texts = 0
        self._first = _block_lists(self.net.get_decoder())[0][0]
        self.blocks = next(list(blocks) for blocks in _block_lists(self.net) if self._first not in blocks)

    def forward(self, pixels: Tensor) -> Tensor:
        self.logits = self._run(self._merge, pixels).logits[0, -self._count - 1 : -1]
        places, tokens = torch.tensor(self._tokens).T
        return self.logits[places, tokens][None]

    def photo_tokens(self, pixels: Tensor) -> Tensor:
        """The photo's tokens (n, D) that the decoder reads."""
        tokens: list[Tensor] = []

        def keep(*call: Any) -> None:
            tokens.append(self._decoder_input(*call).photo[0])
            raise _SeenTokens

        with suppress(_SeenTokens):
            self._run(keep, pixels)
        return tokens[0]

    def _run(self, hook: Callable[..., Any], pixels: Tensor) -> Any:
        handle = self._first.register_forward_pre_hook(hook, with_kwargs=True)
        try:
            return self.net(pixel_values=pixels, use_cache=False, **self._other_inputs)
        finally:
            handle.remove()

    def _decoder_input(self, layer: nn.Module, args: Any, options: Any) -> DecoderInput:
        call = inspect.signature(layer.forward).bind(*args, **options)
        states = call.arguments["hidden_states"]
        if self._image_token is None:  # the photo is no part of the text
            return DecoderInput(call, states, call.arguments["encoder_hidden_states"], None)
        is_photo = self._other_inputs["input_ids"][0] == self._image_token
        newline = getattr(self.net.model, "image_newline", None)  # between the rows of a picture
        if newline is not None:
            is_photo = is_photo & (states[0] != newline).any(1)
        return DecoderInput(call, states[:, ~is_photo], states[:, is_photo], is_photo)

    def _merge(self, *call: Any) -> Any:
        bound, text, photo, is_photo = self._decoder_input(*call)
        self.texts = text.shape[1]
        common = photo.mean(1, keepdim=True)
        states = self.merge_point(torch.cat([text, common, photo - common], 1))
        text, common, deviations = states.split([self.texts, 1, photo.shape[1]], 1)
        photo = deviations + common
        if is_photo is None:
            bound.arguments |= {"hidden_states": text, "encoder_hidden_states": photo}
        else:
            order = is_photo.int().argsort(stable=True).argsort()
            bound.arguments["hidden_states"] = torch.cat([text, photo], 1)[:, order]
        return bound.args, bound.kwargs


class _SeenTokens(Exception):  # noqa: N818 - no error
    """What the hook of photo tokens is for was seen; not ``ReachedLayer``, which hooks on the layers in front raise."""


def _block_lists(net: nn.Module) -> list[nn.ModuleList]:
    return [module for module in net.modules() if isinstance(module, nn.ModuleList)]


class Word(NamedTuple):
    """A word of an answer.

    Attributes:
        number: counted from 1.
        text: the word.
        span: where in the answer it begins and ends.
        places: those of its tokens in the answer.
    """

    number: int
    text: str
    span: tuple[int, int]
    places: range


def explain(image: NetworkInput, request: ImageRequest) -> Explanation:
    """The maps of the words of an answer, by one forward pass with all of it.

    Raises:
        ConfigurationError: the network answers nothing, or the answer lacks a word.
        UnsupportedOpError: the network has operations without an excitation rule.
    """
    start = perf_counter()
    options = request.words or WordOptions()
    model: VisionLanguage = request.model.net.model  # type: ignore[assignment]
    photo = Image.fromarray(image.pixels)
    answer = model.exchange(photo, options.question, options.answer, options.max_tokens)
    words = _chosen(answer, options)
    tokens = [*enumerate(answer.ids.tolist())]
    rivals: list[Token] = []
    if options.against is not None:
        rivals = [_rival(model, answer, word, options.against) for word in words]
    net = AnswerNetwork(model, answer, tokens + rivals)
    targets = torch.zeros(len(words), len(tokens + rivals))
    others = torch.zeros_like(targets)
    for k, word in enumerate(words):
        if rivals:
            place, _ = rivals[k]
            targets[k, place] = 1
            others[k, len(tokens) + k] = 1
        else:  # jointly, a negative prior is that of the dual
            targets[k, word.places] = 1 / len(word.places)
            others[k, word.places] = -1 / len(word.places)
    starts = torch.cat([targets, others])[None].to(answer.pixels)
    result = excitation_backprop(net, answer.pixels, starts, "merge_point", joint=True)

    def photo_tokens(pixels: Tensor) -> Tensor:
        return net.photo_tokens(model.read(pixels, options.question)["pixel_values"])

    grid = patches(photo_tokens, model.net, net.blocks, photo.size)
    relevance = result.relevance[0].sum(2).double()
    photo_relevance = relevance[:, net.texts + 1 :]
    shares = photo_relevance.sum(1, keepdim=True)
    target, other = (photo_relevance / shares.clamp(min=1e-30)).chunk(2)
    values = grid.map(target - other).float().cpu().numpy()
    scores = net.logits.detach().float().softmax(1)
    maps = []
    for k, word in enumerate(words):
        ids = answer.ids[word.places]
        score = float(scores[word.places, ids].prod())
        share = float(shares[k])
        map_ = Map(
            subject=Subject(int(ids[0]), word.text, score, span=word.span, position=word.number),
            layer=LAYER,
            values=values[k],
            mass=share,
            share=share,
            placement=grid.placement,
            against=options.against or "",
        )
        maps.append(map_)
    seconds = perf_counter() - start
    return Explanation(maps=maps, seconds=seconds, question=options.question, answer=answer.text)


def _chosen(answer: QuestionAnswer, options: WordOptions) -> list[Word]:
    """The words of an answer to explain."""
    words = []
    for number, match in enumerate(_WORDS.finditer(answer.text), 1):
        words.append(Word(number, match[0], match.span(), answer.tokens(*match.span())))
    problem = f"the answer {answer.text.strip()!r} has no word"
    if not words:
        raise ConfigurationError(f"{problem}: ask another question, or give --answer")
    spellings = {word.text.lower(): word.text for word in words}
    for word in options.words:
        if word.lower() not in spellings:
            hint = closest(word.lower(), spellings) or "name one of its words"
            raise ConfigurationError(f"{problem} {word!r}: {hint}")
    chosen = {*map(str.lower, options.words)}
    if not chosen and not options.all_words:
        chosen = spellings.keys() - _FUNCTION_WORDS
    return [word for word in words if word.text.lower() in chosen] or words


def _rival(model: VisionLanguage, answer: QuestionAnswer, word: Word, against: str) -> Token:
    """Where a word's tokens differ from those of another word in its place: that place, and the other's token there."""
    before = answer.text[: word.span[0]]
    tokens = model.answer_tokens(before + word.text)
    rivals = model.answer_tokens(before + against)
    different = [pair for pair in zip(tokens, rivals, strict=False) if pair[0] != pair[1]]
    if different:
        token, rival = different[0]
        for place in word.places:
            if answer.ids[place] == token:
                return place, rival
    raise ConfigurationError(f"{against!r} cannot be told from {word.text!r} by a token: give another word")


register(WORDS, Task(lambda *_: [], "vision-language models", layer=LAYER, explain=explain))


class Patches(NamedTuple):
    """The patches of a photo that a network reads.

    Attributes:
        corners: (2, N, 2), x and y of the top left and of the bottom right corners, in pixels of the photo.
        tokens: (N,), the token of the photo that each belongs to.
    """

    corners: Tensor
    tokens: Tensor

    @property
    def placement(self) -> Box:
        """The rectangle that they cover together."""
        starts, ends = self.corners
        return Box(*starts.amin(0).tolist(), *ends.amax(0).tolist())

    def map(self, values: Tensor) -> Tensor:
        """A map (K, h, w) of the placement from the values (K, tokens), in cells as small as the smallest patch.

        Each token's value is spread evenly over its patches.
        """
        x, y = self.corners.double().unbind(2)
        x_side, y_side = self.placement.sides
        across = _shares(x, *x_side)
        down = _shares(y, *y_side)
        counts = self.tokens.bincount(minlength=values.shape[1])
        per_token = values.double() / counts.clamp(min=1)
        per_patch = per_token[:, None, self.tokens]
        return (per_patch * down.T) @ across


def _shares(intervals: Tensor, start: float, end: float) -> Tensor:
    """Which share of each of the intervals (2, N) lies in each of the cells from start to end.

    A cell is as long as the shortest interval.
    """
    low, high = intervals[..., None]
    lengths = high - low
    count = max(1, round((end - start) / float(lengths.min())))
    edges = torch.linspace(start, end, min(_MOST_CELLS, count) + 1, dtype=low.dtype, device=low.device)
    return edges.clamp(low, high).diff() / lengths


def patches(run: TokenReader, net: nn.Module, blocks: Sequence[Any], size: tuple[int, int]) -> Patches:
    """The patches of a photo, whatever its processor and its encoder do.

    Two experiments tell. The processor gets pictures whose colors are coordinates, so each patch tells by its color
    where it lies: in tiles, beside padding, packed in any order. And without the encoder's blocks, which mix tokens, a
    patch reaches only the token that it belongs to, so derivatives tell which patches were merged and which dropped.

    Args:
        run: the network as far as the photo's tokens.
        net: the network.
        blocks: those of its encoder.
        size: the photo's width and height.

    Raises:
        ConfigurationError: no convolution of the network reads an image's three colors, or no patch is in the photo.
    """
    for reader in net.modules():
        if isinstance(reader, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) and reader.in_channels == 3:
            starts, ends = corners = _corners(run, reader, size)
            tokens = _tokens(partial(run, 255 * torch.rand(3, *size[::-1])), reader, blocks)
            is_known = (ends > starts).all(1) & (tokens >= 0)
            if not is_known.any():
                problem = "no patch of the network is in the photo"
                raise ConfigurationError(f"{problem}, which is too small or too narrow")
            return Patches(corners[:, is_known], tokens[is_known])
    problem = "the network has no convolution that reads an image's three colors"
    raise ConfigurationError(f"{problem}: choose another one")


def _corners(run: TokenReader, reader: Any, size: tuple[int, int]) -> Tensor:
    """The corners (2, N, 2) of all patches, in the order of the convolution's output; of padding, they coincide."""
    x, y = torch.meshgrid(*((torch.arange(side) + 0.5) / side for side in size), indexing="xy")
    white = torch.ones(3, *x.shape)
    inputs: list[Tensor] = []

    def keep(_module: nn.Module, args: tuple[Tensor, ...]) -> None:
        inputs.append(args[0].detach().double())
        raise ReachedLayer

    dtype = reader.weight.dtype
    reader.float()  # coordinates need more than the 8 bits of bfloat16
    try:
        for colors in (0 * white, white, torch.stack([x, y, white[0]])):
            with hook_modules([reader], keep, before=True), suppress(ReachedLayer):
                run(255 * colors)
    finally:
        reader.to(dtype)
    low, high, colors_seen = inputs  # what is black and what is white undo the normalization
    u = ((colors_seen - low) / (high - low)).where(high > low, 0)  # padding is the same in all
    places, is_inside = u.split([2, 1], 1)
    weight = (is_inside > _INSIDE).to(u)
    pool = F.avg_pool2d if u.ndim == 4 else F.avg_pool3d

    def mean(values: Tensor) -> Tensor:
        total = pool(weight * values, reader.kernel_size, reader.stride)
        share = pool(weight, reader.kernel_size, reader.stride)
        means = total / share.clamp(min=1e-9)
        return means.movedim(1, -1).flatten(0, -2)

    center = mean(places)
    variance = mean(places**2) - center**2
    pixels = torch.tensor(reader.kernel_size[:-3:-1], device=u.device)
    # n evenly spaced numbers in an interval of length 1 have the variance (1 - 1 / n²) / 12
    length = (12 / (1 - 1 / pixels**2) * variance).clamp(min=0).sqrt()
    corners = torch.stack([center - length / 2, center + length / 2])
    for edge in (0, 1):
        corners = torch.where((corners - edge).abs() < _EDGE, edge, corners)
    return (corners * torch.tensor(size, device=u.device)).float()


def _tokens(run: Callable[[], Tensor], reader: nn.Module, blocks: Sequence[Any]) -> Tensor:
    """The token (N,) of each patch, in the order of the convolution's output; -1 for those that were dropped."""
    outputs: list[Tensor] = []

    def start(_module: nn.Module, _args: Any, output: Tensor) -> Tensor:
        outputs.append(output.detach().requires_grad_())
        return outputs[-1] * 1

    for block in blocks:  # which leave all as it is
        block.forward = lambda hidden_states, *_, **__: hidden_states
    try:
        with hook_modules([reader], start), torch.enable_grad():
            tokens = run()
    finally:
        for block in blocks:
            del block.forward
    direction = torch.randn_like(tokens)

    def slopes(weights: Tensor) -> Tensor:
        """How strongly each patch acts on the tokens with such weights."""
        (gradient,) = torch.autograd.grad(tokens, outputs, direction * weights[:, None], retain_graph=True)
        return gradient.double().abs().sum(1).flatten()

    # a token's number in binary, one digit at a time: it is doubled where that digit is 1
    numbers = torch.arange(len(tokens), device=tokens.device)
    baseline = slopes(1 + 0 * numbers)
    number = torch.zeros_like(baseline, dtype=torch.long)
    for place in range(len(tokens).bit_length()):
        number += (slopes(1 + (numbers >> place & 1)) > 1.5 * baseline).long() << place
    return torch.where(baseline > 0, number, -1)
