"""Words: the subjects are those of the answer of a vision-language model to a question about the image."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor, nn

from ebcli.datatypes.explanation import Explanation, Map, Subject
from ebcli.eb import excitation_backprop
from ebcli.errors import ConfigurationError, closest
from ebcli.models.keywords import WORDS
from ebcli.run.patches import find_patches
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
    "a an the this that these those there here it its he him his she her they them their i me my you "
    "your we us our who whom whose which what is am are was were be been being has have had do does "
    "did can could may might must shall should will would of in on at to from by with for about into "
    "onto upon over as than and or but nor so if then because while when where how not no yes also "
    "just very some any each every both all such".split()
)


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
        decoder_blocks = _block_lists(self.net.get_decoder())[0]
        self._first = decoder_blocks[0]
        encoder_lists = (blocks for blocks in _block_lists(self.net) if self._first not in blocks)
        self.blocks = [*next(encoder_lists)]

    def forward(self, pixels: Tensor) -> Tensor:
        logits = self._run(self._merge, pixels).logits[0]
        self.logits = logits[-self._count - 1 : -1]
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
        states = torch.cat([text, common, photo - common], 1)
        counts = [self.texts, 1, photo.shape[1]]
        text, common, deviations = self.merge_point(states).split(counts, 1)
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
    duals = torch.zeros_like(targets)
    for k, word in enumerate(words):
        if rivals:
            place, _ = rivals[k]
            targets[k, place] = 1
            duals[k, len(tokens) + k] = 1
        else:  # jointly, a negative prior is that of the dual
            targets[k, word.places] = 1 / len(word.places)
            duals[k, word.places] = -1 / len(word.places)
    starts = torch.cat([targets, duals])[None].to(answer.pixels)
    result = excitation_backprop(net, answer.pixels, starts, "merge_point", joint=True)

    def photo_tokens(pixels: Tensor) -> Tensor:
        return net.photo_tokens(model.read(pixels, options.question)["pixel_values"])

    patches = find_patches(photo_tokens, model.net, net.blocks, photo.size)
    relevance = result.relevance[0].sum(2).double()
    photo_relevance = relevance[:, net.texts + 1 :]
    shares = photo_relevance.sum(1, keepdim=True)
    of_targets, of_duals = (photo_relevance / shares.clamp(min=1e-30)).chunk(2)
    values = patches.map(of_targets - of_duals).float().cpu().numpy()
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
            placement=patches.placement,
            against=options.against or "",
        )
        maps.append(map_)
    seconds = perf_counter() - start
    return Explanation(maps=maps, seconds=seconds, question=options.question, answer=answer.text)


def _chosen(answer: QuestionAnswer, options: WordOptions) -> list[Word]:
    """The words of an answer to explain."""
    words = []
    for number, match in enumerate(_WORDS.finditer(answer.text), 1):
        span = match.span()
        words.append(Word(number, match[0], span, answer.tokens(*span)))
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
    for token, rival in zip(tokens, rivals, strict=False):
        if token != rival:
            for place in word.places:
                if answer.ids[place] == token:
                    return place, rival
            break
    raise ConfigurationError(f"{against!r} cannot be told from {word.text!r} by a token: give another word")


register(WORDS, Task(lambda *_: [], "vision-language models", layer=LAYER, explain=explain))
