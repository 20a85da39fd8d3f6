"""open_clip, by a stand-in for the package that has its interface."""

import logging
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ebcli.errors import ConfigurationError
from ebcli.models import load_model

TEXTS = ["a red car", "cat"]
LONGEST = 12


class Towers(nn.Module):
    """Letters are tokens; a text's embedding is the mean of its letters'."""

    def __init__(self) -> None:
        super().__init__()
        self.visual = nn.Sequential(nn.Conv2d(3, 8, 8, 8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.letters = nn.Embedding(128, 8)
        self.logit_scale, self.logit_bias = nn.Parameter(torch.tensor(2.0)), nn.Parameter(torch.tensor(-3.0))
        self.context_length = LONGEST

    def encode_text(self, tokens: Tensor) -> Tensor:
        assert tokens.shape[1] == LONGEST
        kept = (tokens > 0).unsqueeze(2)
        return (self.letters(tokens) * kept).sum(1) / kept.sum(1)


def tokenizer(texts: list[str], context_length: int) -> Tensor:
    """Cuts what is too long, as open_clip's do."""
    rows = [[ord(letter) for letter in text][:context_length] for text in texts]
    return torch.tensor([row + [0] * (context_length - len(row)) for row in rows])


def create_model(name: str, **options: Any) -> nn.Module:
    logging.error("the root logger is loud")
    if options.get("pretrained"):
        assert options["force_quick_gelu"] is True
        raise OSError("no network")
    return Towers()


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    size = {
        "size": (32, 32),
        "mean": (0.5,) * 3,
        "std": (0.25,) * 3,
        "interpolation": "bicubic",
        "resize_mode": "squash",
    }
    module = SimpleNamespace(
        list_models=lambda: ["ViT-B-32", "RN50"],
        list_pretrained_tags_by_model=lambda name: ["openai", "laion2b"],
        get_pretrained_cfg=lambda name, tag: {"quick_gelu": tag == "openai"},
        create_model=create_model,
        get_model_preprocess_cfg=lambda net: size,
        get_tokenizer=lambda name: tokenizer,
    )
    monkeypatch.setitem(sys.modules, "open_clip", module)


@torch.no_grad()
def test_the_logits_are_cosine_similarities(caplog: pytest.LogCaptureFixture) -> None:
    images = torch.randn(2, 3, 32, 32)
    loaded = load_model("open_clip/RN50", "none", class_names=TEXTS)
    torch.manual_seed(0)  # as every network is built
    net = Towers()
    features, embeddings = net.visual(images), net.encode_text(tokenizer(TEXTS, LONGEST))
    cosines = torch.cosine_similarity(features[:, None], embeddings[None], dim=2)
    torch.testing.assert_close(loaded.net(images), cosines)
    assert (loaded.scores, loaded.categories, loaded.transforms.fit) == ("raw", tuple(TEXTS), "squash")
    single = load_model("open_clip/RN50", "none", class_names=TEXTS, scores="sigmoid")
    torch.testing.assert_close(
        single.to_scores(single.net(images)), (cosines * net.logit_scale.exp() - 3).sigmoid()
    )
    assert not caplog.records and logging.root.manager.disable == 0


def test_what_does_not_fit_is_named() -> None:
    load_model("open_clip/RN50", "none", class_names=["x" * LONGEST])
    with pytest.raises(
        ConfigurationError, match=r"the text 'x+' is longer than the 12 tokens that open_clip/RN50 reads"
    ):
        load_model("open_clip/RN50", "none", class_names=["x" * (LONGEST + 1)])
    with pytest.raises(ConfigurationError, match=r"open_clip has no model 'RN51': did you mean 'RN50'"):
        load_model("open_clip/RN51", class_names=TEXTS)
    with pytest.raises(
        ConfigurationError, match=r"cannot load open_clip/RN50 \(no network\): choose openai, laion2b, or"
    ):
        load_model("open_clip/RN50", class_names=TEXTS)
    with pytest.raises(ConfigurationError, match="open_clip/RN50 compares images with texts"):
        load_model("open_clip/RN50", "none")
