"""Maps are those of a run, and the command line that is shown makes the picture that is downloaded."""

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
from asking import TEN, maps, network, run_command
from runs import tiny_model
from starlette.testclient import TestClient

import ebcli
from ebcli.models import load_model
from ebcli.run.controls import references

ROOT = Path(__file__).parents[2]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "query",
    [
        {"target": "2"},
        {"target": "class b", "layer": "0"},
        {"target": "5", "against": "1"},
        {"target": "5", "against": "1", "signed": "0", "cells": "1"},
        {"target": "3", "method": "marginal", "style": "heatmap"},
        {"target": "3", "method": "object"},
        {"target": "3", "method": "grad-cam", "layer": "0"},
        {"target": "3", "signed": "1", "alpha": "0.5", "layer": "input"},
        {"target": "0", "style": "contour", "layer": "0"},
    ],
    ids=urlencode,
)
def test_the_command_makes_the_picture(client: TestClient, query: dict[str, str]) -> None:
    query = {"photo": TEN[3], **query}
    downloaded = client.get("/picture", params=query)
    assert downloaded.status_code == 200, downloaded.json()
    made, command = run_command(client, query)
    assert made == downloaded.content
    (name,) = [word for word in shlex.split(command) if word.endswith(".png")]
    assert downloaded.headers["content-disposition"] == f'attachment; filename="{name}"'


def test_the_command_has_the_number_of_a_class_whose_name_another_one_has(
    opened: Callable[..., TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    twins = replace(tiny_model(), categories=("crane", "crane", *"cdefg"))
    monkeypatch.setattr("ebcli.run.explainer.load_model", lambda *_, **__: twins)
    client, query = opened(), {"photo": TEN[3], "target": "1"}
    made, command = run_command(client, query)
    assert made == client.get("/picture", params=query).content
    words = shlex.split(command)
    assert words[words.index("--target") + 1] == "1"


@pytest.mark.slow
@pytest.mark.parametrize(
    "query", [{"target": "967"}, {"target": "282", "against": "cup", "layer": "features.5"}], ids=urlencode
)
def test_the_bundled_network_s_pictures_are_as_strong_as_those_of_the_command(
    opened: Callable[..., TestClient], monkeypatch: pytest.MonkeyPatch, query: dict[str, str]
) -> None:
    monkeypatch.setattr("ebcli.run.explainer.load_model", load_model)
    monkeypatch.setattr("ebcli.run.controls.references", references)
    client = opened(network("efficientnet_lite0"), paths=(str(ROOT / "sample_images/mosaic.jpg"),))
    query = {"photo": str(ROOT / "sample_images/mosaic.jpg"), **query}
    made, _ = run_command(client, query)
    assert made == client.get("/picture", params=query).content
    about, _ = maps(client, **query)
    assert any("evidence" in word for word in about["maps"][0]["told"])  # so it was compared with noise


def test_the_command_has_the_names_of_classes_and_of_the_photo(client: TestClient) -> None:
    command = client.get("/command", params={"photo": TEN[0], "target": "1", "against": "2"}).json()[
        "command"
    ]
    words = [
        "photos/0/0000.jpg",
        "--model",
        "tiny",
        "--target",
        "class b",
        "--against",
        "class c",
        "--layer",
        "2",
    ]
    others = ["--output", "0000-class-b.png", "--device", "cpu"]
    assert shlex.split(command) == ["eb-saliency", *words, *others]


def test_one_answer_has_all_layers_as_they_are_one_by_one(client: TestClient) -> None:
    layers = client.get("/status").json()["networks"][0]["layers"]
    assert layers[0] == "input"
    assert "2" in layers
    about, every = maps(client, photo=TEN[1], target="4", layer="every")
    assert [one["layer"] for one in about["maps"]] == layers
    for layer, values in zip(layers, every, strict=True):
        _, (alone,) = maps(client, photo=TEN[1], target="4", layer=layer)
        np.testing.assert_allclose(values, alone, rtol=1e-5, atol=1e-8)


def test_maps_are_those_of_explain(client: TestClient) -> None:
    about, (values,) = maps(client, photo=TEN[0], target="2", layer="2")
    expected = ebcli.explain(tiny_model(), "photos/0/0000.jpg", 2, layer="2")
    np.testing.assert_allclose(values, expected.maps[0], rtol=1e-5, atol=1e-8)
    (told,), (subject,) = about["maps"], about["subjects"]
    assert subject["name"] == "class c"
    assert subject["score"] == pytest.approx(expected.scores[0])
    assert told["told"] == expected.explanation.maps[0].evidence_words
    assert about["size"] == [48, 40]


def test_the_likely_classes_are_sorted_and_all_there(client: TestClient) -> None:
    found = client.get("/subjects", params={"photo": TEN[2]}).json()
    scores = [one["score"] for one in found]
    assert scores == sorted(scores, reverse=True)
    assert sum(scores) == pytest.approx(1, abs=1e-5)  # of seven classes
    assert {one["name"] for one in found} == {f"class {letter}" for letter in "abcdefg"}


def test_two_networks_answer_for_themselves(
    opened: Callable[..., TestClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(name: str, *_: object, **__: object) -> Any:
        loaded = tiny_model()
        if name == "other":
            loaded.net[0].weight.data.neg_()
        return loaded

    monkeypatch.setattr("ebcli.run.explainer.load_model", load)
    client = opened(network("tiny"), network("other", "0"))
    assert [one["layer"] for one in client.get("/status").json()["networks"]] == ["2", "0"]
    (one,), (other,) = (
        maps(client, photo=TEN[0], target="1", network=number, layer="2")[1] for number in "01"
    )
    assert np.abs(one - other).max() > 1e-5
    made, command = run_command(client, {"photo": TEN[0], "target": "1", "network": "1"})
    assert "--model other" in command
    assert "--layer 0" in command
    assert made == client.get("/picture", params={"photo": TEN[0], "target": "1", "network": "1"}).content


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        (
            {"photo": "99"},
            "'99' is not among the photos: choose another one, or start eb-saliency serve with it",
        ),
        ({"photo": "../photos/0/0000.jpg"}, "'../photos/0/0000.jpg' is not among the photos"),
        ({"photo": "added-0123456789abcdef"}, "this photo was added to the page, and is gone: add it again"),
        ({"photo": TEN[0], "network": "5"}, "there is no such network: open the page again"),
        ({"photo": TEN[0], "network": "-1"}, "there is no such network: open the page again"),
        ({"photo": TEN[0], "target": "class z"}, "there is no class 'class z'"),
        ({"photo": TEN[0], "target": "9"}, "class 9 does not exist: valid indices are 0 to 6"),
        ({"photo": TEN[0], "target": "1", "against": "1"}, "class b is both --target and --against"),
        ({"photo": TEN[0], "layer": "nothing"}, "tiny has no layer 'nothing'"),
        ({"photo": TEN[0], "alpha": "nan"}, "alpha is nan, but it must be between 0 and 1"),
        ({"photo": TEN[0], "style": "oil"}, "unknown style 'oil'"),
        ({"photo": TEN[0], "box": "1,2"}, "this is no address of the page"),
        (
            {"photo": TEN[0], "method": "marginal", "against": "1"},
            "--against compares classes, which marginal maps do not: drop it, or choose --method contrastive",
        ),
    ],
)
def test_wrong_addresses_are_one_sentence(client: TestClient, query: dict[str, str], sentence: str) -> None:
    answer = client.get("/maps", params=query)
    assert answer.status_code == 400
    assert sentence in answer.json()["problem"]
    assert client.get("/maps", params={"photo": TEN[0], "target": "1"}).status_code == 200
