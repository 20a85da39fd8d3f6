"""Words: the subjects are those of the answer of a vision-language model to a question about the image."""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
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

_WORDS = re.compile(r"\w+(?:['’.-]\w+)*")
# which have no map unless they are asked for
_FUNCTION_WORDS = frozenset(
    "a an the this that these those there here it its he him his she her they them their i me my you your we us our "
    "who whom whose which what is am are was were be been being has have had do does did can could may might must "
    "shall should will would of in on at to from by with for about into onto upon over as than and or but nor so if "
    "then because while when where how not no yes also just very some any each every both all such".split()
)
_INSIDE = 0.75  # of what is white in the photo; padding is darker
_EDGE = 0.002  # of the photo's size, by which interpolation moves its edges
_MOST_CELLS = 512  # of a map, along a side


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

    def __init__(self, model: VisionLanguage, exchange: QuestionAnswer, tokens: Sequence[tuple[int, int]] = ()) -> None:
        super().__init__()
        self.net, self.merge_point = model.net, nn.Identity()
        self._other_inputs, self._count, self._tokens = exchange.other_inputs, len(exchange.ids), tokens
        self._image_token = model.image_token
        self.logits, self.texts = torch.empty(0), 0
        (self._first, *_), *_ = _block_lists(self.net.get_decoder())
        self.blocks = next(list(blocks) for blocks in _block_lists(self.net) if self._first not in blocks)

    def forward(self, pixels: Tensor) -> Tensor:
        logits = self._run(self._merge, pixels).logits[0, -self._count - 1 : -1]
        self.logits = logits
        places, tokens = torch.tensor(self._tokens).T
        chosen: Tensor = logits[places, tokens][None]
        return chosen

    def photo_tokens(self, pixels: Tensor) -> Tensor:
        """The photo's tokens (n, D) that the decoder reads."""
        tokens: list[Tensor] = []

        def keep(layer: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
            tokens.append(self._parts(layer, args, options)[2][0])
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

    def _parts(self, layer: nn.Module, args: Any, options: Any) -> tuple[inspect.BoundArguments, Tensor, Any, Any]:
        """What the decoder's first layer gets: its arguments, the tokens of text and photo, and which are which."""
        arguments = inspect.signature(layer.forward).bind(*args, **options)
        states, photo = arguments.arguments["hidden_states"], arguments.arguments.get("encoder_hidden_states")
        if self._image_token is None:  # the decoder's layers look at the photo, which is no part of their text
            return arguments, states, photo, None
        of_photo = self._other_inputs["input_ids"][0] == self._image_token
        newline = getattr(self.net.model, "image_newline", None)  # between the rows of a picture
        if newline is not None:
            of_photo = of_photo & (states[0] != newline).any(1)
        return arguments, states[:, ~of_photo], states[:, of_photo], of_photo

    def _merge(self, layer: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        arguments, texts, photo, of_photo = self._parts(layer, args, options)
        common, self.texts = photo.mean(1, keepdim=True), texts.shape[1]
        states = self.merge_point(torch.cat([texts, common, photo - common], 1))
        texts, common, deviations = states.split([self.texts, 1, photo.shape[1]], 1)
        photo = deviations + common
        if of_photo is None:
            arguments.arguments |= {"hidden_states": texts, "encoder_hidden_states": photo}
        else:
            order = torch.cat([(~of_photo).nonzero(), of_photo.nonzero()])[:, 0].argsort()
            arguments.arguments["hidden_states"] = torch.cat([texts, photo], 1)[:, order]
        return arguments.args, arguments.kwargs


class _SeenTokens(Exception):  # noqa: N818 - no error
    """What the hook of photo tokens is for was seen; not ``ReachedLayer``, which hooks on the layers in front raise."""


def _block_lists(net: nn.Module) -> list[nn.ModuleList]:
    return [module for module in net.modules() if isinstance(module, nn.ModuleList)]


def explain(image: NetworkInput, request: ImageRequest) -> Explanation:
    """The maps of the words of an answer, by one forward pass with all of it.

    Raises:
        ConfigurationError: the network answers nothing, or the answer lacks a word.
        UnsupportedOpError: the network has operations without an excitation rule.
    """
    start, words = time.perf_counter(), request.words or WordOptions()
    model: VisionLanguage = request.network.loaded.net.model  # type: ignore[assignment]
    photo = Image.fromarray(image.pixels)
    answer = model.exchange(photo, words.question, words.answer, words.max_tokens)
    chosen = _chosen(answer.text, words.words, words.all_words)
    places = [answer.tokens(*word.span()) for _, word in chosen]
    starts_of = [(place, int(token)) for place, token in enumerate(answer.ids)]
    rivals = [] if words.against is None else [_other(model, answer, word, words.against) for _, word in chosen]
    net = AnswerNetwork(model, answer, starts_of + rivals)
    starts = torch.zeros(2, len(chosen), len(starts_of) + len(rivals))
    for k, place in enumerate(places):
        if rivals:
            starts[0, k, rivals[k][0]] = starts[1, k, len(starts_of) + k] = 1
        else:  # jointly, a negative prior is that of the dual
            starts[:, k, place] = torch.tensor([[1.0], [-1.0]]) / len(place)
    priors = starts.flatten(0, 1)[None].to(answer.pixels)
    relevance = excitation_backprop(net, answer.pixels, priors, "merge_point", joint=True).relevance[0].sum(2).double()

    def tokens_of(pixels: Tensor) -> Tensor:
        return net.photo_tokens(model.read(pixels, words.question)["pixel_values"])

    grid = patches(tokens_of, model.net, net.blocks, photo.size)
    of_photo = relevance[:, net.texts + 1 :]
    shares = of_photo.sum(1)
    target, other = (of_photo / shares.clamp(min=1e-30)[:, None]).chunk(2)
    values, masses = grid.map(target - other).float().cpu().numpy(), shares.tolist()
    chances = net.logits.detach().float().softmax(1)
    common: dict[str, Any] = {"layer": LAYER, "placement": grid.placement, "against": words.against or ""}
    maps = []
    for (number, word), place, map_, mass in zip(chosen, places, values, masses, strict=False):
        token, score = int(answer.ids[place[0]]), float(chances[place, answer.ids[place]].prod())
        subject = Subject(token, word[0], score, span=word.span(), position=number)
        maps.append(Map(subject=subject, values=map_, mass=mass, share=mass, **common))
    return Explanation(maps=maps, seconds=time.perf_counter() - start, question=words.question, answer=answer.text)


def _chosen(text: str, words: Sequence[str], all_words: bool) -> list[tuple[int, re.Match[str]]]:
    """The words of an answer to explain, each with its number from 1."""
    all_matches = [*enumerate(_WORDS.finditer(text), 1)]
    if not all_matches:
        raise ConfigurationError(f"the answer {text.strip()!r} has no word: ask another question, or give --answer")
    if not words:
        chosen = [
            (number, match) for number, match in all_matches if all_words or match[0].lower() not in _FUNCTION_WORDS
        ]
        return chosen or all_matches
    lowercase = {word.lower() for word in words}
    spellings = {match[0].lower(): match[0] for _, match in all_matches}
    for word in words:
        if word.lower() not in spellings:
            hint = closest(word.lower(), spellings) or "name one of its words"
            raise ConfigurationError(f"the answer {text.strip()!r} has no word {word!r}: {hint}")
    return [(number, match) for number, match in all_matches if match[0].lower() in lowercase]


def _other(model: VisionLanguage, answer: QuestionAnswer, word: re.Match[str], against: str) -> tuple[int, int]:
    """Where a word's tokens differ from those of another word in its place: that place, and the other's token there."""
    before = answer.text[: word.start()]
    word_tokens, other = model.answer_tokens(before + word[0]), model.answer_tokens(before + against)
    differing = [i for i, (a, b) in enumerate(zip(word_tokens, other, strict=False)) if a != b]
    place = answer.tokens(*word.span())
    positions = [i for i in place if differing and int(answer.ids[i]) == word_tokens[differing[0]]]
    if not positions:
        raise ConfigurationError(f"{against!r} cannot be told from {word[0]!r} by a token: give another word")
    return positions[0], other[differing[0]]


register(WORDS, Task(lambda *_: [], "vision-language models", layer=LAYER, explain=explain))


class Patches(NamedTuple):
    """The patches of a photo that a network reads.

    Attributes:
        corners: (N, 4), left, top, right and bottom in pixels of the photo.
        tokens: (N,), the token of the photo that each belongs to.
    """

    corners: Tensor
    tokens: Tensor

    @property
    def placement(self) -> Box:
        """The rectangle that they cover together."""
        return Box(*self.corners[:, :2].amin(0).tolist(), *self.corners[:, 2:].amax(0).tolist())

    def map(self, values: Tensor) -> Tensor:
        """A map (K, h, w) of the placement from the values (K, tokens), in cells as small as the smallest patch.

        Each token's value is spread evenly over its patches.
        """
        place = self.placement
        across, down = (
            _shares(self.corners[:, axis].double(), self.corners[:, axis + 2].double(), place[axis], place[axis + 2])
            for axis in (0, 1)
        )
        per_token = values.double() / self.tokens.bincount(minlength=values.shape[1]).clamp(min=1)
        return (per_token[:, self.tokens][:, None] * down.T) @ across


def _shares(low: Tensor, high: Tensor, start: float, end: float) -> Tensor:
    """Which share of each interval lies in each of the cells, as long as the shortest interval, from start to end."""
    count = min(_MOST_CELLS, max(1, round((end - start) / float((high - low).min()))))
    edges = torch.linspace(start, end, count + 1, dtype=low.dtype, device=low.device)
    overlap = torch.minimum(high[:, None], edges[1:]) - torch.maximum(low[:, None], edges[:-1])
    return overlap.clamp(min=0) / (high - low)[:, None]


def patches(run: Callable[[Tensor], Tensor], net: nn.Module, blocks: Sequence[Any], size: tuple[int, int]) -> Patches:
    """The patches of a photo, whatever its processor and its encoder do.

    Two experiments tell. The processor gets pictures whose colors are coordinates, so each patch tells by its color
    where it lies: in tiles, beside padding, packed in any order. And without the encoder's blocks, which mix tokens, a
    patch reaches only the token that it belongs to, so derivatives tell which patches were merged and which dropped.

    Args:
        run: from a photo (3, H, W), from 0 to 255, to its tokens (n, D).
        net: the network.
        blocks: those of its encoder.
        size: the photo's width and height.

    Raises:
        ConfigurationError: no convolution of the network reads an image's three colors, or no patch is in the photo.
    """
    for reader in net.modules():
        if isinstance(reader, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) and reader.in_channels == 3:
            corners = _corners(run, reader, size)
            tokens = _tokens(lambda: run(torch.rand(3, *size[::-1]) * 255), reader, blocks)
            is_known = (corners[:, 2:] > corners[:, :2]).all(1) & (tokens >= 0)
            if not is_known.any():
                raise ConfigurationError("no patch of the network is in the photo, which is too small or too narrow")
            return Patches(corners[is_known], tokens[is_known])
    raise ConfigurationError("the network has no convolution that reads an image's three colors: choose another one")


def _corners(run: Callable[[Tensor], Tensor], reader: Any, size: tuple[int, int]) -> Tensor:
    """The corners (N, 4) of all patches, in the order of the convolution's output; of padding, they coincide."""
    width, height = size
    x = ((torch.arange(width) + 0.5) / width).expand(height, width)
    y = ((torch.arange(height) + 0.5) / height)[:, None].expand(height, width)
    white = torch.ones(3, height, width)
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
    weight, pool = (u[:, 2:] > _INSIDE).to(u), F.avg_pool2d if u.ndim == 4 else F.avg_pool3d

    def mean(values: Tensor) -> Tensor:
        sums, share = (pool(array, reader.kernel_size, reader.stride) for array in (weight * values, weight))
        return (sums / share.clamp(min=1e-9)).movedim(1, -1).flatten(0, -2)

    center, pixels = mean(u[:, :2]), torch.tensor(reader.kernel_size[:-3:-1], device=u.device)
    # n evenly spaced numbers in an interval of length 1 have the variance (1 - 1 / n²) / 12
    length = (12 / (1 - 1 / pixels**2) * (mean(u[:, :2] ** 2) - center**2)).clamp(min=0).sqrt()
    corners = torch.cat([center - length / 2, center + length / 2], 1)
    for edge in (0, 1):
        corners = torch.where((corners - edge).abs() < _EDGE, edge, corners)
    return (corners * torch.tensor(size * 2, device=u.device)).float()


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
    # a token's number in binary, one digit at a time: it is doubled where that digit is 1
    numbers = torch.arange(len(tokens), device=tokens.device)
    digits = [0 * numbers, *(numbers >> place & 1 for place in range(len(tokens).bit_length()))]
    direction = torch.randn_like(tokens)
    sums = []
    for digit in digits:
        (slopes,) = torch.autograd.grad(tokens, outputs, direction * (1 + digit[:, None]), retain_graph=True)
        sums.append(slopes.double().abs().sum(1).flatten())
    baseline, *digit_sums = sums
    number = sum((digit_sum > 1.5 * baseline).long() << place for place, digit_sum in enumerate(digit_sums))
    return torch.where(baseline > 0, number, -1)
