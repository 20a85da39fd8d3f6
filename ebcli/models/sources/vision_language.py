"""Vision-language models of Hugging Face, and what they get of a photo, a question and an answer."""

import inspect
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from PIL import Image
from torch import Tensor
from torch.nn import Module

from ebcli.datatypes.input_spec import InputSpec
from ebcli.errors import import_optional
from ebcli.models.checkpoint import Tensors
from ebcli.models.keywords import WORDS
from ebcli.models.loaded import LoadedModel
from ebcli.models.photo_probe import PhotoEntry, PhotoTokens, cast, find_entry, find_tokens
from ebcli.models.running import checked_device
from ebcli.models.sources.base import fetch_errors
from ebcli.models.sources.huggingface import HuggingFace
from ebcli.models.sources.huggingface_heads import head_of

_AUTO = "AutoModelForImageTextToText"
_BLIP = "blip"
_USUAL_QUESTION = "Describe the image."
_ADVICE = "save the processor beside the model by save_pretrained(), and install the packages that it needs"
_MOST_CACHED = 64  # sizes of photos and questions whose tokens are known
_ENTRIES = WeakKeyDictionary[Module, PhotoEntry]()  # of networks that were probed, also by earlier calls

OnText = Callable[[str], None]


class QuestionAnswer(NamedTuple):
    """A photo, a question and its answer, as the network gets them.

    Attributes:
        inputs: what the network gets, by name; ``input_ids`` (1, S) are the tokens of question and answer.
        ids: (N,), the tokens of the answer, which are the last ones.
        text: the answer.
        ends: how much of the text is sure after each token; one that only begins a character adds nothing.
    """

    inputs: Tensors
    ids: Tensor
    text: str
    ends: Sequence[int]

    def tokens(self, start: int, end: int) -> range:
        """The tokens that a part of the text is made of."""
        begins = [0, *self.ends[:-1]]
        # tokens of a character begin together
        first = bisect_left(begins, begins[bisect_right(self.ends, start)])
        return range(first, bisect_left(self.ends, end) + 1)


class VisionLanguageNet(Module):
    """A vision-language network and what reads and writes for it.

    Attributes:
        net: the network.
        model: the model that it is of.
    """

    def __init__(self, model: "VisionLanguage") -> None:
        super().__init__()
        self.net = model.net
        self.model = model


class VisionLanguage(HuggingFace):
    """A model on the hub, or in a local directory, with its processor.

    Args:
        name: the model, with or without ``hf/``.
        device: any PyTorch device.
        dtype: of its parameters.

    Raises:
        ConfigurationError: it cannot be loaded, or is of another kind.

    Attributes:
        net: the network, in evaluation mode.
    """

    def __init__(self, name: str, device: str, dtype: torch.dtype) -> None:
        self._given_name = name
        super().__init__(name.removeprefix(self._prefix))
        place = checked_device(device)
        self._processor = self._fetch("AutoProcessor", "processor", _ADVICE)
        with fetch_errors(f"the weights of {self._title}", "its weights must be in safetensors files"):
            # in one operation, experts have no rule
            net = self._load_published(dtype=dtype, experts_implementation="eager")
        self.net: Any = net.eval().requires_grad_(False).to(place)
        self._photo_tokens: dict[Any, PhotoTokens] = {}

    @classmethod
    def is_name(cls, name: str) -> bool:
        """Whether a name is that of such a model, and of no classifier or the like.

        Raises:
            ConfigurationError: its configuration cannot be read.
        """
        model = cls.__new__(cls)
        vars(model).update(name=name.removeprefix(cls._prefix), _given_name=name)
        model._library = import_optional("transformers")
        model._config = model._fetch("AutoConfig", "configuration", _ADVICE)
        return model._answers and head_of(model._library, model._config) is None

    @classmethod
    def in_memory(cls, net: Any, processor: Any) -> "VisionLanguage":
        """A model of transformers and its processor, as they are.

        Raises:
            ConfigurationError: it is of another kind.
        """
        model = cls.__new__(cls)
        name = net.name_or_path or type(net).__name__
        vars(model).update(name=name, _given_name=name, _library=import_optional("transformers"))
        vars(model).update(net=net, _config=net.config, _processor=processor, _photo_tokens={})
        model._chosen_head()  # refuses other kinds
        return model

    @property
    def _title(self) -> str:
        return self._given_name

    def as_loaded(self) -> LoadedModel:
        """The model like others: its network gets photos as they are, which the processor reads."""
        spec = InputSpec.as_is(network=self._title)
        net = VisionLanguageNet(self)
        return LoadedModel(self._title, net, transforms=spec, task=WORDS, one_by_one=True)

    @property
    def _answers(self) -> bool:
        auto = self._library.models.auto.modeling_auto
        return type(self._config) in auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

    def _chosen_head(self) -> str:
        if not self._answers:
            raise self._error(
                f"is of type {self._config.model_type}, which answers no questions about photos"
            )
        return _AUTO

    def photo_tokens(self, size: tuple[int, int], question: str) -> tuple[PhotoEntry, PhotoTokens]:
        """Where photos enter the network, and the tokens of those of one size (width, height), see `photo_probe`.

        Raises:
            ConfigurationError: they could not be placed.
        """
        read = partial(self.read, question=question)
        key = size, question
        entry = _ENTRIES.get(self.net)
        if entry is None:
            words = self.answer_tokens(_USUAL_QUESTION)
            with self._silent():
                entry, self._photo_tokens[key] = find_entry(self.net, read, size, words[0])
            _ENTRIES[self.net] = entry
        if key not in self._photo_tokens:
            tokens = find_tokens(self.net, read, size, entry)
            if tokens is None:
                raise self._error("mixes parts of a photo of this size before its text part reads them")
            if len(self._photo_tokens) >= _MOST_CACHED:
                self._photo_tokens.clear()
            self._photo_tokens[key] = tokens
        return entry, self._photo_tokens[key]

    @property
    def _is_blip(self) -> bool:
        return self._config.model_type == _BLIP

    def read(self, photo: Image.Image | Tensor, question: str) -> dict[str, Any]:
        """What the network gets of a photo, RGB or (3, H, W) from 0 to 255, and a question, which may be empty.

        Raises:
            ConfigurationError: the processor refuses them.
        """
        processor = self._processor
        text = question
        image_token = getattr(processor, "image_token", None)
        if isinstance(image_token, str):  # other processors add tokens themselves
            text = image_token + question
        adds_tokens = True
        if getattr(processor, "chat_template", None):
            content = [{"type": "image"}, {"type": "text", "text": question or _USUAL_QUESTION}]
            conversation = [{"role": "user", "content": content}]
            text = processor.apply_chat_template(conversation, add_generation_prompt=True)
            adds_tokens = not text.startswith(processor.tokenizer.bos_token or "\0")
        title = f"what {self._title} gets of the photo and the question"
        with fetch_errors(title, "choose another photo or question"), self._silent():
            inputs = self._process(photo, text, adds_tokens)
        if self.net.config.is_encoder_decoder:
            start = self.net.generation_config.decoder_start_token_id
            inputs["decoder_input_ids"] = torch.tensor([[start]])
        inputs.pop("labels", None)
        arguments = inspect.signature(self.net.forward).parameters
        inputs = {name: tensor.to(self.net.device) for name, tensor in inputs.items() if name in arguments}
        if not arguments.keys().isdisjoint(("use_cache", "kwargs")):
            inputs["use_cache"] = False
        return inputs

    def _process(self, photo: Image.Image | Tensor, text: str, adds_tokens: bool) -> dict[str, Any]:
        call = partial(self._processor, text=text, return_tensors="pt", add_special_tokens=adds_tokens)
        try:
            return dict(call(images=photo))
        except TypeError:
            if isinstance(photo, Image.Image):
                raise
            # some processors take pictures only
            pixels = photo.round().byte().permute(1, 2, 0).numpy()
            return dict(call(images=Image.fromarray(pixels)))

    def exchange(
        self,
        photo: Image.Image,
        question: str,
        answer: str | None,
        longest: int,
        on_text: OnText | None = None,
    ) -> QuestionAnswer:
        """Ask a question about a photo.

        Args:
            photo: RGB.
            question: the question; if it is empty, that for a description.
            answer: the answer to explain; None for the network's own, its most likely token at each place.
            longest: tokens of the network's own answer.
            on_text: gets the network's own answer as far as it is, again and again.

        Raises:
            ConfigurationError: there is no answer.
        """
        inputs = self.read(photo, question)
        name = "input_ids"
        if self.net.config.is_encoder_decoder:
            name = "decoder_input_ids"
        elif self._is_blip:  # its tokenizer ends texts, and its decoder has a first token of its own
            inputs |= {key: inputs[key][:, :-1] for key in (name, "attention_mask")}
            inputs[name][0, 0] = self._config.text_config.bos_token_id
        question_ids = inputs[name][0]
        if answer is None:
            ids = self._generate(inputs, question_ids, longest, on_text)
        else:
            ids = self._answer_ids(question_ids, answer)
        beginnings = [self._decode(ids[: i + 1]) for i in range(len(ids))]
        if not beginnings or not beginnings[-1].strip():
            raise self._error("answers nothing: ask another question, or give --answer")
        for _ in ids:  # as each token adds to masks and types of tokens when it is generated
            inputs = self.net._update_model_kwargs_for_generation(
                self._library.utils.ModelOutput(), inputs, self.net.config.is_encoder_decoder
            )
        inputs[name] = torch.cat([question_ids, ids])[None]
        # less what is no character yet
        ends = [*accumulate((len(beginning.rstrip("\ufffd")) for beginning in beginnings), max)]
        return QuestionAnswer(inputs, ids, beginnings[-1], ends)

    def _generate(
        self, inputs: dict[str, Any], question_ids: Tensor, longest: int, on_text: OnText | None
    ) -> Tensor:
        """The tokens of the network's own answer, without those that end it."""
        options = cast(self.net, inputs) | {"use_cache": True, "streamer": self._streamer(on_text)}
        options |= {"do_sample": False, "num_beams": 1, "max_new_tokens": longest}
        with torch.no_grad(), self._silent():
            ids: Tensor = self.net.generate(**options)[0]
        count = len(question_ids)
        if torch.equal(ids[:count], question_ids):  # some networks return new tokens only
            ids = ids[count:]
        special_ids = self._special_ids
        while len(ids) and int(ids[-1]) in special_ids:
            ids = ids[:-1]
        return ids

    @property
    def _special_ids(self) -> list[int]:
        return self._processor.tokenizer.all_special_ids

    def _streamer(self, on_text: OnText | None) -> Any:
        """What `generate` puts its tokens into; None if nobody asks for them."""
        if on_text is None:
            return None
        tokenizer = self._processor.tokenizer
        streamer = self._library.TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
        pieces: list[str] = []

        def add(text: str, stream_end: bool = False) -> None:  # noqa: ARG001 - transformers passes it
            pieces.append(text)
            on_text("".join(pieces))

        streamer.on_finalized_text = add
        return streamer

    def _answer_ids(self, question_ids: Tensor, answer: str) -> Tensor:
        # many tokenizers make other tokens of a word behind a space, as which it is generated behind "ASSISTANT:"
        before = last_word = self._decode(question_ids[-1:])
        if last_word and not last_word[-1].isspace():
            before += " "
        tokens = self.answer_tokens(before + answer)[len(self.answer_tokens(last_word)) :]
        special_ids = self._special_ids
        return torch.tensor([token for token in tokens if token not in special_ids]).to(question_ids)

    def _decode(self, ids: Tensor) -> str:
        return self._processor.tokenizer.decode(ids, skip_special_tokens=True)

    def answer_tokens(self, text: str) -> list[int]:
        """The tokens of an answer."""
        return self._processor.tokenizer(text, add_special_tokens=False)["input_ids"]
