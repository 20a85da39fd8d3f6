"""Trained detectors, segmentation and video networks with known places. `benchmarks/trained` has more of them.

The weights are those of `python -m benchmarks.trained.dense_training`, rounded by `benchmarks/trained/rounded.py`.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import ebcli
from benchmarks.trained.dense_maps import DEFAULT, Question, maps, questions, share
from benchmarks.trained.dense_training import NETWORKS
from benchmarks.trained.pictures import SIDE
from benchmarks.trained.rounded import restored
from benchmarks.trained.scenes import CLASSES
from ebcli.datatypes.input_spec import InputSpec

WEIGHTS = Path(__file__).with_name("weights")
# Of the contrastive map, in the letter's half of the scene or of the frames
SHARES = {"SSDlite": 0.95, "FasterRCNN": 0.95, "YOLO": 0.8, "LRASPP": 0.95, "MC3": 0.95}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(name, marks=[pytest.mark.release] * (name in ("FasterRCNN", "SSDlite")))
        for name in SHARES
    ],
)
def asked(request: pytest.FixtureRequest) -> tuple[str, list[Question]]:
    """A network, and questions about the letters that it found."""
    name = request.param
    net = NETWORKS[name]()
    net.load_state_dict(restored(torch.load(WEIGHTS / f"{name}.pt", weights_only=True)))
    found = list(questions(name, net.eval(), 4))
    assert len(found) >= 5  # of 8
    return name, found


def mean_share(found: list[torch.Tensor], about: list[Question], what: str) -> float:
    return sum(getattr(share(*each), what) for each in zip(found, about, strict=True)) / len(about)


@pytest.mark.one_in(3)
def test_the_default_map_is_on_the_asked_letter(asked: tuple[str, list[Question]]) -> None:
    name, about = asked
    layer = DEFAULT[name]
    by_question = [maps(question, [layer], ["contrastive"]) for question in about]
    found = {method: [each[method][layer] for each in by_question] for method in by_question[0]}
    assert all((each > 0).any() for each in found["contrastive"])
    assert mean_share(found["contrastive"], about, "half") > SHARES[name]
    assert (
        mean_share(found["contrastive"], about, "half") > mean_share(found["Grad-CAM"], about, "half") + 0.1
    )
    assert mean_share(found["contrastive"], about, "place") > 3 * mean_share(
        found["contrastive"], about, "chance"
    )


@pytest.mark.release
def test_an_untrained_yolo_has_less_on_the_letter_at_the_layer_of_the_command() -> None:
    net = NETWORKS["YOLO"]()
    net.load_state_dict(restored(torch.load(WEIGHTS / "YOLO.pt", weights_only=True)))
    loaded = ebcli.LoadedModel(
        "yolo",
        net.eval(),
        transforms=InputSpec((SIDE, SIDE)),
        categories=None,
        weights="",
        num_classes=CLASSES,
        task="detection",
    )
    assert ebcli.default_layer(loaded) == DEFAULT["YOLO"]
    torch.manual_seed(1)
    untrained, trained = NETWORKS["YOLO"]().eval(), list(questions("YOLO", net, 4))
    means = []
    for about in (trained, [replace(question, net=untrained) for question in trained]):
        found = [maps(question, [DEFAULT["YOLO"]], ["contrastive"])["contrastive"] for question in about]
        means.append(mean_share([each[DEFAULT["YOLO"]] for each in found], about, "place"))
    assert means[0] > 0.6
    assert means[0] > 1.5 * means[1]


@pytest.mark.one_in(2)
def test_all_probability_passes_the_default_layer(asked: tuple[str, list[Question]]) -> None:
    name, about = asked
    for question in about[:4]:
        result = ebcli.excitation_backprop(
            question.net, question.inputs, question.target, DEFAULT[name], where=question.where
        )
        assert (
            0.99 < result.mass.item() <= 1 + 1e-4
        )  # the rest is lost at units that only their bias activates
