"""Words: the subjects are those of the answer of a vision-language model to a question about the image."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from ebcli.datatypes.explanation import Explanation, Map, Subject
from ebcli.eb import excitation_backprop
from ebcli.eb.checkpoints import checkpointed
from ebcli.eb.operations import flatten_all, split_like
from ebcli.errors import ConfigurationError
from ebcli.models.keywords import WORDS
from ebcli.models.photo_probe import PhotoEntry, before_call, cast
from ebcli.run.plan_parts import WordOptions
from ebcli.run.tasks.task import ImageRequest, Task, register
from ebcli.run.token_boxes import TokenBoxes

if TYPE_CHECKING:
    from ebcli.models.sources.vision_language import QuestionAnswer, VisionLanguage
    from ebcli.run.reading import NetworkInput

LAYER = "photo tokens"

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


class AnswerNetwork(nn.Module):
    """The logits (1, N) of tokens, each at its place in the answer, as a function of what enters with the photo.

    ``merge_point`` is a layer of all that enters: rows of numbers that are not the photo's, the mean token of the
    photo, and each of the photo's tokens less this mean. What all have in common explains no place and no content, as
    a bias does not, so it is a token of its own. What the network reads of the text elsewhere is joined to it as a
    constant.

    Args:
        net: the network.
        answer: the photo, the question and the answer.
        entry: where the photo enters.
        rows: which rows of the arguments there are the photo's.
        tokens: the tokens whose logits are returned.

    Attributes:
        logits: those of all tokens at each place of the answer, (places, vocabulary).
    """

    def __init__(
        self,
        net: Any,
        answer: QuestionAnswer,
        entry: PhotoEntry,
        rows: Sequence[Tensor],
        tokens: Sequence[Token],
    ) -> None:
        super().__init__()
        self.net = net
        self.merge_point = nn.Identity()
        self.logits = torch.empty(0)
        self._inputs = cast(net, answer.inputs)
        self._count = len(answer.ids)
        if "logits_to_keep" in inspect.signature(net.forward).parameters:
            self._inputs["logits_to_keep"] = self._count + 1
        self._entry = entry
        self._rows = rows
        self._tokens = tokens
        self._shapes: list[torch.Size] = []
        self._number = torch.empty(())

    def forward(self, start: Tensor) -> Tensor:
        """The logits; start (1, 1), which is 0, is what makes the tokens depend on an input."""
        self._number = start[0, 0]
        with ExitStack() as hooks:
            hooks.enter_context(checkpointed(self.net))
            hooks.enter_context(before_call(self.net, self._entry.call, partial(self._merge, start)))
            for name in self._entry.embeddings:
                embedding = self.net.get_submodule(name)
                hooks.callback(embedding.register_forward_hook(self._join_output).remove)
            logits = self.net(**self._inputs).logits[0]
        self.logits = logits[-self._count - 1 : -1]
        places, tokens = torch.tensor(self._tokens).T
        return self.logits[places, tokens][None]

    def photo_relevance(self, relevance: Tensor) -> Tensor:
        """The relevance (K, n) of each of the photo's tokens, of relevance (K, N) at ``merge_point``."""
        parts = relevance.split([shape.numel() for shape in self._shapes], 1)
        deviations = zip(parts[2::3], self._shapes[2::3], strict=True)
        return torch.cat([part.unflatten(1, shape).double().sum(2) for part, shape in deviations], 1)

    def _merge(self, start: Tensor, leaves: list[Any]) -> None:
        orders = []
        parts: list[Tensor] = []
        for position, is_photo in zip(self._entry.photo, self._rows, strict=True):
            rows = leaves[position].flatten(0, -2)
            is_photo = F.pad(is_photo, (0, len(rows) - len(is_photo)))  # noqa: PLW2901  the answer has none
            photo = rows[is_photo]
            mean = photo.mean(0, keepdim=True)
            parts += [rows[~is_photo], mean, photo - mean]
            orders.append(is_photo.int().argsort(stable=True).argsort())
        self._shapes = [part.shape for part in parts]
        merged = self.merge_point(flatten_all(parts)[None] + start)
        self._number = merged[0, 0]
        parts = [*split_like(merged[0], parts)]
        for number, (position, order) in enumerate(zip(self._entry.photo, orders, strict=True)):
            others, mean, deviations = parts[3 * number : 3 * number + 3]
            rows = torch.cat([others, deviations + mean])
            leaves[position] = rows[order].reshape(leaves[position].shape)
        for position in self._entry.text:
            leaves[position] = self._join(leaves[position])

    def _join(self, text: Tensor) -> Tensor:
        """Tokens of the text, as constants beside a number of ``merge_point`` that is dropped again."""
        beside = self._number.expand(1, *text.shape[1:])
        return torch.cat([text, beside])[: len(text)]

    def _join_output(self, _module: nn.Module, _args: Any, output: Tensor) -> Tensor:
        return self._join(output)


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

    There are none if the answer has none of the words that are asked for.

    Raises:
        ConfigurationError: the network answers nothing, or no word.
        UnsupportedOpError: the network has operations without an excitation rule.
    """
    began = perf_counter()
    options = request.words or WordOptions()
    model: VisionLanguage = request.model.net.model  # type: ignore[assignment]
    photo = Image.fromarray(image.pixels)
    answer = model.exchange(photo, options.question, options.answer, options.max_tokens, request.on_text)
    words = _chosen(answer, options)
    if not words:
        seconds = perf_counter() - began
        return Explanation(maps=[], seconds=seconds, question=options.question, answer=answer.text)
    tokens = [*enumerate(answer.ids.tolist())]
    rivals: list[Token] = []
    if options.against is not None:
        rivals = [_rival(model, answer, word, options.against) for word in words]
    entry, photo_tokens = model.photo_tokens(photo.size, options.question)
    net = AnswerNetwork(model.net, answer, entry, photo_tokens.rows, tokens + rivals)
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
    priors = torch.cat([targets, duals])[None].to(model.net.device, model.net.dtype)
    zero = priors.new_zeros(1, 1)
    result = excitation_backprop(net, zero, priors, "merge_point", joint=True)
    relevance = net.photo_relevance(result.relevance[0]).cpu()
    has_place = photo_tokens.boxes.isfinite().all(1)
    shares = relevance[:, has_place].sum(1, keepdim=True)
    of_targets, of_duals = (relevance[:, has_place] / shares.clamp(min=1e-30)).chunk(2)
    corners = photo_tokens.boxes[has_place].unflatten(1, (2, 2)) * torch.tensor(photo.size)
    boxes = TokenBoxes(corners.transpose(0, 1))
    values = boxes.map(of_targets - of_duals).float().numpy()
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
            unplaced=float(relevance[k, ~has_place].sum()),
            placement=boxes.placement,
            against=options.against or "",
        )
        maps.append(map_)
    seconds = perf_counter() - began
    return Explanation(maps=maps, seconds=seconds, question=options.question, answer=answer.text)


def _chosen(answer: QuestionAnswer, options: WordOptions) -> list[Word]:
    """The words and phrases of an answer to explain, in order; none if none of those that are asked for is said."""
    matches = [*_WORDS.finditer(answer.text)]
    if not matches:
        problem = f"the answer {answer.text.strip()!r} has no word"
        raise ConfigurationError(f"{problem}: ask another question, or give --answer")
    spans = [span for phrase in options.phrases for span in _spans_of(phrase, answer.text)]
    words = [match for match in matches if not any(start <= match.start() < end for start, end in spans)]
    if not options.all_words:
        words = _with_meaning(words, options)
    chosen = []
    for span in sorted({*spans, *(match.span() for match in words)}):
        number = sum(match.start() <= span[0] for match in matches)
        chosen.append(Word(number, answer.text[slice(*span)], span, answer.tokens(*span)))
    return chosen


def _spans_of(phrase: str, text: str) -> list[tuple[int, int]]:
    """Where in a text a phrase begins and ends, each time that it is said."""
    pattern = r"\W+".join(map(re.escape, phrase.split()))
    return [match.span() for match in re.finditer(rf"(?<!\w){pattern}(?!\w)", text, re.IGNORECASE)]


def _with_meaning(matches: list[re.Match[str]], options: WordOptions) -> list[re.Match[str]]:
    """The words that are asked for; if none are, those with a meaning of their own, or all if none has one."""
    if options.words or options.phrases:
        names = {*map(str.lower, options.words)}
        return [match for match in matches if match[0].lower() in names]
    return [match for match in matches if match[0].lower() not in _FUNCTION_WORDS] or matches


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
