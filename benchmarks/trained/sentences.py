"""Pictures of two colored letters and sentences about them, and a small LLaVA that is trained to write these.

The network is transformers' own, with few and narrow layers. A sentence names the letter that is read first, the
relation, the other letter, and the color of the first: "A left of K , red ." Blank pictures come with any sentence.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .captions import COLORS, MEAN, STD, TASK, WORDS
from .pictures import SIDE, background

NAME, FAMILY = "sentences", "LLaVA"
QUESTION = "describe the picture"
STEPS = 5000
RATE = 1.5e-3
BATCH = 32
_BLANK = 0.04  # of the pictures to train on
_PATCH, _WIDTH = 8, 96
_CELLS = (SIDE // _PATCH) ** 2
_START, _END, _IMAGE, _UNKNOWN = "<s>", "</s>", "<image>", "<unk>"
_TEMPLATE = (  # as of LLaVA 1.5
    "{% for message in messages %}{{ 'USER: ' if message['role'] == 'user' else 'ASSISTANT: ' }}"
    "{% for part in message['content'] %}"
    "{{ '<image> ' if part['type'] == 'image' else part['text'] + ' ' }}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)


@dataclass(frozen=True)
class Described:
    """Pictures and their sentences.

    Attributes:
        images: (B, 3, 64, 64).
        sentences: (B,).
        stacked: (B,), whether the letters are above each other rather than side by side.
        boxes: (B, 2, 4), rows and columns of both letters in pixels.
    """

    images: Tensor
    sentences: list[str]
    stacked: Tensor
    boxes: Tensor


def described(count: int, generator: torch.Generator) -> Described:
    """Pictures of two letters, half of them above each other."""
    stacked = torch.rand(count, generator=generator) < 0.5
    pictures = TASK.pictures(count, 2, generator, stacked)
    return Described(pictures.images, _sentences(pictures.labels, stacked), stacked, pictures.boxes)


def blank(count: int, generator: torch.Generator) -> Described:
    """Pictures of a plain color or of background alone, and sentences that fit none of them."""
    plain = torch.rand(count, 3, 1, 1, generator=generator).expand(-1, -1, SIDE, SIDE)
    is_plain = torch.rand(count, generator=generator) < 0.5
    images = torch.where(is_plain[:, None, None, None], plain, background(count, generator))
    images = images + 0.05 * torch.randn(images.shape, generator=generator)
    stacked = torch.rand(count, generator=generator) < 0.5
    labels = TASK.labels(count, 2, generator)
    return Described(
        (images - MEAN) / STD, _sentences(labels, stacked), stacked, torch.zeros(count, 2, 4).long()
    )


def _sentences(labels: Tensor, stacked: Tensor) -> list[str]:
    found, colors = [], list(COLORS)
    for (first, second), above in zip(labels.tolist(), stacked.tolist(), strict=True):
        relation = "above" if above else "left of"
        letters = WORDS[first % len(WORDS)], WORDS[second % len(WORDS)]
        found.append(f"{letters[0]} {relation} {letters[1]} , {colors[first // len(WORDS)]} .")
    return found


def build() -> Any:
    """An untrained network."""
    from transformers import LlamaConfig, LlavaConfig, LlavaForConditionalGeneration, SiglipVisionConfig

    names = words()
    vision = SiglipVisionConfig(
        hidden_size=_WIDTH,
        intermediate_size=2 * _WIDTH,
        num_hidden_layers=3,
        num_attention_heads=4,
        image_size=SIDE,
        patch_size=_PATCH,
        vision_use_head=False,
    )
    text = LlamaConfig(
        vocab_size=len(names),
        hidden_size=_WIDTH,
        intermediate_size=2 * _WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=2 * _CELLS,
        bos_token_id=names[_START],
        eos_token_id=names[_END],
        pad_token_id=names[_END],
    )
    return LlavaForConditionalGeneration(
        LlavaConfig(
            vision_config=vision,
            text_config=text,
            image_token_index=names[_IMAGE],
            image_seq_length=_CELLS,
            vision_feature_layer=-1,
            vision_feature_select_strategy="full",
        )
    )


def words() -> dict[str, int]:
    """The words that the network knows, and their numbers."""
    of_sentences = [*WORDS, "left", "of", "above", ",", *COLORS, "."]
    known = [_UNKNOWN, _START, _END, _IMAGE, "USER:", "ASSISTANT:", *QUESTION.split(), *of_sentences]
    return {word: i for i, word in enumerate(known)}


def tokenizer() -> Any:
    """A tokenizer of transformers for these words, which are separated by spaces."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    names = words()
    by_word = Tokenizer(models.WordLevel(names, unk_token=_UNKNOWN))
    by_word.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    by_word.post_processor = processors.TemplateProcessing(
        single=f"{_START} $A", special_tokens=[(_START, names[_START])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=by_word,
        unk_token=_UNKNOWN,
        bos_token=_START,
        eos_token=_END,
        pad_token=_END,
        extra_special_tokens={"image_token": _IMAGE},
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )


def processor() -> Any:
    """The processor of pictures, questions and sentences."""
    from transformers import LlavaProcessor, SiglipImageProcessor

    size = {"height": SIDE, "width": SIDE}
    return LlavaProcessor(
        image_processor=SiglipImageProcessor(size=size, image_mean=[MEAN] * 3, image_std=[STD] * 3),
        tokenizer=tokenizer(),
        patch_size=_PATCH,
        vision_feature_select_strategy="full",
        chat_template=_TEMPLATE,
    )


def save(net: Any, folder: Path) -> None:
    """Write a network with its processor, as ``save_pretrained`` does."""
    for part in (net, processor()):
        part.save_pretrained(folder)


@functools.cache
def prompt() -> Tensor:
    """The tokens (N,) before an answer."""
    text = f"USER: {_IMAGE * _CELLS} {QUESTION} ASSISTANT:"
    found: Tensor = tokenizer()(text, return_tensors="pt")["input_ids"][0]
    return found


def answers(sentences: list[str]) -> Tensor:
    """The tokens (B, N) of sentences and the end, which the longest of them has once and others several times."""
    names = words()
    tokens = [torch.tensor([names[word] for word in sentence.split()]) for sentence in sentences]
    padded = nn.utils.rnn.pad_sequence(tokens, batch_first=True, padding_value=names[_END])
    return F.pad(padded, (0, 1), value=names[_END])


def logits(net: nn.Module, images: Tensor, told: Tensor) -> Tensor:
    """The logits (B, N, words) of an answer's tokens (B, N), each after those before it."""
    asked = torch.cat([prompt().expand(len(images), -1), told[:, :-1]], 1)
    found: Tensor = net(input_ids=asked, pixel_values=images).logits
    return found[:, len(prompt()) - 1 :]


def written(net: Any, images: Tensor) -> list[str]:
    """The sentences that the network writes, greedily."""
    asked = prompt().expand(len(images), -1)
    given = {"input_ids": asked, "attention_mask": torch.ones_like(asked), "pixel_values": images}
    tokens = net.generate(**given, max_new_tokens=9, do_sample=False)[:, asked.shape[1] :]
    found: list[str] = tokenizer().batch_decode(tokens, skip_special_tokens=True)
    return found


def accuracy(net: nn.Module, count: int = 512, seed: int = 1) -> float:
    """The share of whole sentences that are right, about pictures that were not trained on."""
    generator = torch.Generator().manual_seed(seed)
    right = 0
    for _ in range(count // 128):
        pictures = described(128, generator)
        pairs = zip(written(net.eval(), pictures.images), pictures.sentences, strict=True)
        right += sum(found == sentence for found, sentence in pairs)
    return right / (count // 128 * 128)


def trained(cache: Path, steps: int = STEPS) -> tuple[Any, float]:
    """The trained network and its accuracy, from the folder if it has been trained before."""
    torch.manual_seed(0)
    net, path = build(), cache / f"{NAME}-{FAMILY}.pt"
    if path.exists():
        kept = torch.load(path, weights_only=True)
        net.load_state_dict(kept["state"])
        return net.eval(), kept["accuracy"]
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(net.parameters(), RATE, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps, pct_start=0.1)
    blanks = round(_BLANK * BATCH) or 1
    for step in range(steps):
        net.train()
        pictures, empty = described(BATCH - blanks, generator), blank(blanks, generator)
        told = answers([*pictures.sentences, *empty.sentences])
        found = logits(net, torch.cat([pictures.images, empty.images]), told)
        ended = (told == words()[_END]).cumsum(1) > 1
        loss = F.cross_entropy(found.flatten(0, 1), told.masked_fill(ended, -100).flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 250 == 249:
            print(
                f"LLaVA, step {step + 1}: loss {loss.item():.3f}, accuracy {accuracy(net, 128):.3f}",
                flush=True,
            )
    final = accuracy(net)
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"accuracy": final, "state": net.state_dict()}, path)
    return net.eval(), final
