"""Words: the subjects are those of the answer of a vision-language model to a question about the image."""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from torch import Tensor, nn

from ebcli.eb import excitation_backprop
from ebcli.errors import ConfigurationError, closest
from ebcli.models.keywords import WORDS
from ebcli.models.patches import patches
from ebcli.nouns.explanation import Explanation, Map, Subject
from ebcli.run.plan_parts import WordOptions
from ebcli.run.tasks.task import Asked, Task, register

if TYPE_CHECKING:
    from ebcli.models.sources.vision_language import Exchange, VisionLanguage
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


class _Said(nn.Module):
    """A network as a function of the photo's pixels: the logits (1, N) of tokens, each at its place in the answer.

    ``merged`` is a layer in front of the decoder: all that it reads, as the tokens of the text, the mean token of the
    photo, and each of the photo's tokens less this mean. What all have in common explains no place and no content, as
    a bias does not, so it is a token of its own.

    Attributes:
        logits: those of all tokens at each place of the answer, (places, vocabulary).
        texts: how many of the tokens at ``merged`` are of the text.
        blocks: those of the encoder.
    """

    def __init__(self, model: VisionLanguage, exchange: Exchange, tokens: Sequence[tuple[int, int]] = ()) -> None:
        super().__init__()
        self.net, self.merged = model.net, nn.Identity()
        self._others, self._count, self._tokens = exchange.others, len(exchange.ids), tokens
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
        found: list[Tensor] = []

        def keep(layer: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
            found.append(self._parts(layer, args, options)[2][0])
            raise _Seen

        with suppress(_Seen):
            self._run(keep, pixels)
        return found[0]

    def _run(self, hook: Callable[..., Any], pixels: Tensor) -> Any:
        handle = self._first.register_forward_pre_hook(hook, with_kwargs=True)
        try:
            return self.net(pixel_values=pixels, use_cache=False, **self._others)
        finally:
            handle.remove()

    def _parts(self, layer: nn.Module, args: Any, options: Any) -> tuple[inspect.BoundArguments, Tensor, Any, Any]:
        """What the decoder's first layer gets: its arguments, the tokens of text and photo, and which are which."""
        given = inspect.signature(layer.forward).bind(*args, **options)
        both, photo = given.arguments["hidden_states"], given.arguments.get("encoder_hidden_states")
        if self._image_token is None:  # the decoder's layers look at the photo, which is no part of their text
            return given, both, photo, None
        of_photo = self._others["input_ids"][0] == self._image_token
        newline = getattr(self.net.model, "image_newline", None)  # between the rows of a picture
        if newline is not None:
            of_photo = of_photo & (both[0] != newline).any(1)
        return given, both[:, ~of_photo], both[:, of_photo], of_photo

    def _merge(self, layer: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        given, texts, photo, of_photo = self._parts(layer, args, options)
        common, self.texts = photo.mean(1, keepdim=True), texts.shape[1]
        merged = self.merged(torch.cat([texts, common, photo - common], 1))
        texts, common, deviations = merged.split([self.texts, 1, photo.shape[1]], 1)
        photo = deviations + common
        if of_photo is None:
            given.arguments |= {"hidden_states": texts, "encoder_hidden_states": photo}
        else:
            order = torch.cat([(~of_photo).nonzero(), of_photo.nonzero()])[:, 0].argsort()
            given.arguments["hidden_states"] = torch.cat([texts, photo], 1)[:, order]
        return given.args, given.kwargs


class _Seen(Exception):  # noqa: N818 - no error
    """What a hook was for was seen, so the rest of the forward pass is not needed."""


def _block_lists(net: nn.Module) -> list[nn.ModuleList]:
    return [one for one in net.modules() if isinstance(one, nn.ModuleList)]


def explain(image: NetworkInput, asked: Asked) -> Explanation:
    """The maps of the words of an answer, by one forward pass with all of it.

    Raises:
        ConfigurationError: the network answers nothing, or the answer lacks a word.
        UnsupportedOpError: the network has operations without an excitation rule.
    """
    start, words = time.perf_counter(), asked.words or WordOptions()
    model: VisionLanguage = asked.network.loaded.net.model  # type: ignore[assignment]
    photo = Image.fromarray(image.pixels)
    said = model.exchange(photo, words.question, words.answer, words.max_tokens)
    chosen = _chosen(said.text, words.words, words.all_words)
    places = [said.tokens(*one.span()) for _, one in chosen]
    told = [(place, int(token)) for place, token in enumerate(said.ids)]
    others = [] if words.against is None else [_other(model, said, one, words.against) for _, one in chosen]
    net = _Said(model, said, told + others)
    starts = torch.zeros(2, len(chosen), len(told) + len(others))
    for k, place in enumerate(places):
        if others:
            starts[0, k, others[k][0]] = starts[1, k, len(told) + k] = 1
        else:  # jointly, a negative prior is that of the dual
            starts[:, k, place] = torch.tensor([[1.0], [-1.0]]) / len(place)
    priors = starts.flatten(0, 1)[None].to(said.pixels)
    relevance = excitation_backprop(net, said.pixels, priors, "merged", joint=True).relevance[0].sum(2).double()

    def tokens_of(pixels: Tensor) -> Tensor:
        return net.photo_tokens(model.read(pixels, words.question)["pixel_values"])

    where = patches(tokens_of, model.net, net.blocks, photo.size)
    of_photo = relevance[:, net.texts + 1 :]
    shares = of_photo.sum(1)
    target, other = (of_photo / shares.clamp(min=1e-30)[:, None]).chunk(2)
    values, masses = where.map(target - other).float().cpu().numpy(), shares.tolist()
    chances = net.logits.detach().float().softmax(1)
    maps = [
        Map(
            subject=Subject(
                int(said.ids[place[0]]),
                one[0],
                float(chances[place, said.ids[place]].prod()),
                span=one.span(),
                position=number,
            ),
            layer=LAYER,
            values=map_,
            mass=mass,
            placement=where.placement,
            against=words.against or "",
            share=mass,
        )
        for (number, one), place, map_, mass in zip(chosen, places, values, masses, strict=False)
    ]
    return Explanation(maps=maps, seconds=time.perf_counter() - start, question=words.question, answer=said.text)


def _chosen(text: str, words: Sequence[str], every: bool) -> list[tuple[int, re.Match[str]]]:
    """The words of an answer to explain, each with its number from 1."""
    found = [*enumerate(_WORDS.finditer(text), 1)]
    if not found:
        raise ConfigurationError(f"the answer {text.strip()!r} has no word: ask another question, or give --answer")
    if not words:
        chosen = [(at, one) for at, one in found if every or one[0].lower() not in _FUNCTION_WORDS]
        return chosen or found
    wanted = {word.lower() for word in words}
    said = {one[0].lower(): one[0] for _, one in found}
    for word in words:
        if word.lower() not in said:
            hint = closest(word.lower(), said)
            raise ConfigurationError(
                f"the answer {text.strip()!r} has no word {word!r}: " + (hint or "name one of its words")
            )
    return [(at, one) for at, one in found if one[0].lower() in wanted]


def _other(model: VisionLanguage, said: Exchange, one: re.Match[str], against: str) -> tuple[int, int]:
    """Where a word's tokens differ from those of another word in its place: that place, and the other's token there."""
    before = said.text[: one.start()]
    own, other = model.continued(before + one[0]), model.continued(before + against)
    differing = [i for i, (a, b) in enumerate(zip(own, other, strict=False)) if a != b]
    place = said.tokens(*one.span())
    at = [i for i in place if differing and int(said.ids[i]) == own[differing[0]]]
    if not at:
        raise ConfigurationError(f"{against!r} cannot be told from {one[0]!r} by a token: give another word")
    return at[0], other[differing[0]]


register(WORDS, Task(lambda *_: [], "vision-language models", layer=LAYER, explain=explain))
