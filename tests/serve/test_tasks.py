"""Detections, segments and texts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import color_tasks
import numpy as np
import pytest
import two_heads
from asking import TEN, maps, network, run_command
from color_net import GREEN, RED, painted
from starlette.testclient import TestClient
from two_towers import clip

from ebcli.models import load_model

SQUARES = {"red": (16, 16, 56, 56), "green": (80, 40, 120, 100)}


@pytest.fixture(autouse=True)
def real_networks(ten_photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ebcli.run.explainer.load_model", load_model)
    painted((128, 128), (RED, SQUARES["red"]), (GREEN, SQUARES["green"])).save("squares.png")


def share(values: np.ndarray, place: list[float], square: tuple[int, int, int, int]) -> float:
    """Of a positive map, the part whose cells have their centers in a square."""
    positive = np.maximum(values, 0)
    left, top, right, bottom = place
    y = top + (np.arange(positive.shape[0]) + 0.5) * (bottom - top) / positive.shape[0]
    x = left + (np.arange(positive.shape[1]) + 0.5) * (right - left) / positive.shape[1]
    rows, columns = (y > square[1]) & (y < square[3]), (x > square[0]) & (x < square[2])
    return float(positive[np.ix_(rows, columns)].sum() / positive.sum())


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("name", "layer"), [("detector", "backbone.cells"), ("Segmenter", "pixels")])
def test_objects_are_found_and_explained_one_by_one(
    opened: Callable[..., TestClient], name: str, layer: str
) -> None:
    client = opened(network(f"{color_tasks.__file__}:{name}", layer), paths=("squares.png",))
    found = client.get("/subjects", params={"photo": "squares.png"}).json()
    assert {one["name"] for one in found} == {"green", "red"}
    for one in found:
        left, top, right, bottom = square = SQUARES[one["name"]]
        x, y = np.concatenate(one["outlines"])[:4].mean(0)  # the middle of a box, or a point of an edge
        assert left - 2 <= x <= right + 2
        assert top - 2 <= y <= bottom + 2
        query = {"photo": "squares.png", "target": str(one["index"])}
        if one["box"] is not None:
            corners = np.array(one["outlines"][0])
            assert one["box"] == pytest.approx([*corners.min(0), *np.ptp(corners, axis=0)], abs=0.1)
            query["box"] = ",".join(map(str, one["box"]))
        about, (values,) = maps(client, **query)
        assert [subject["name"] for subject in about["subjects"]] == [one["name"]]
        assert share(values, about["maps"][0]["place"], square) > 0.9
        made, _ = run_command(client, query)
        assert made == client.get("/picture", params=query).content


@pytest.mark.slow
def test_a_network_that_the_command_knows_to_find_several_segments(opened: Callable[..., TestClient]) -> None:
    client = opened(network("lraspp_mobilenet_v3_large", weights="none"), paths=("squares.png",))
    query = {"photo": "squares.png"}
    query["target"] = str(client.get("/subjects", params=query).json()[0]["index"])
    made, _ = run_command(client, query)  # to a directory, as to a file there may be one only
    assert made == client.get("/picture", params=query).content


def test_one_of_several_heads_is_explained(opened: Callable[..., TestClient]) -> None:
    client = opened(network(f"{two_heads.__file__}:two", "pixels", head="color"), paths=("squares.png",))
    (status,) = client.get("/status").json()["networks"]
    assert status["name"] == f"{two_heads.__file__}:two, head color"
    assert client.get("/classes").json() == two_heads.COLOR
    query = {"photo": "squares.png", "target": "0", "method": "marginal"}
    about, (values,) = maps(client, **query)
    assert [subject["name"] for subject in about["subjects"]] == ["green"]
    assert values.sum() == pytest.approx(1)
    made, line = run_command(client, query)
    assert "--head color" in line
    assert made == client.get("/picture", params=query).content


def test_a_photo_without_objects_is_a_sentence(opened: Callable[..., TestClient]) -> None:
    painted((128, 128)).save("nothing.png")
    client = opened(network(f"{color_tasks.__file__}:Segmenter", "pixels"), paths=("nothing.png",))
    assert client.get("/subjects", params={"photo": "nothing.png"}).json() == []
    answer = client.get("/maps", params={"photo": "nothing.png"})
    assert "finds nothing to explain: name a class" in answer.json()["problem"]


def test_any_text_can_be_asked(opened: Callable[..., TestClient], monkeypatch: pytest.MonkeyPatch) -> None:
    clip(Path("two"))
    loads = []

    def load(*args: Any, **options: Any) -> Any:
        loads.append(options)
        return load_model(*args, **options)

    monkeypatch.setattr("ebcli.run.explainer.load_model", load)
    client = opened(network("clip/two"))
    (status,) = client.get("/status").json()["networks"]
    assert status["texts"]
    answers = {}
    for text in ("red A", "a blue letter X"):
        about, (answers[text],) = maps(client, photo=TEN[0], target=text)
        assert about["subjects"][0]["name"] == text
    contrast = {"photo": TEN[0], "target": "a blue letter X", "against": "red A"}
    assert client.get("/maps", params=contrast).status_code == 200
    assert len(loads) == 1
    made, command = run_command(client, contrast)
    assert made == client.get("/picture", params=contrast).content
    assert "--target 'a blue letter X' --against 'red A'" in command
    assert np.abs(answers["red A"] - answers["a blue letter X"]).max() > 0
    problem = client.get("/maps", params={"photo": TEN[0]}).json()["problem"]
    assert "compares images with texts: type one" in problem
