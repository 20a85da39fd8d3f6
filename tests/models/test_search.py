"""The models that eb-saliency models lists, with a server in the hub's place."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit

import pytest
from click.testing import CliRunner
from huggingface_hub import constants
from web_server import Server

from ebcli.cli.saliency import main
from ebcli.models import model_names


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, list[str]]]:
    """What a server that knows two models was asked for."""
    server, queries = Server(), list[dict[str, list[str]]]()
    known = {"image-classification": "acme/resnet18-pets", "zero-shot-image-classification": "acme/clip-resnet18"}

    def answer(handler: BaseHTTPRequestHandler) -> None:
        queries.append(parse_qs(urlsplit(handler.path).query))
        server.send(handler, json.dumps([{"id": known[queries[-1]["pipeline_tag"][0]]}]).encode())

    class Every(dict):  # type: ignore[type-arg]
        def get(self, path: str, default: object = None) -> object:
            return answer

    server.answers = Every()
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    return queries


def test_a_pattern_filters_names_of_all_sources(asked: list[dict[str, list[str]]]) -> None:
    result = CliRunner().invoke(main, ["models", "ResNet18"])
    listed = result.stdout.split()
    assert listed[0] == "resnet18"
    assert "timm/resnet18" in listed
    assert listed[-2:] == ["hf/acme/resnet18-pets", "clip/acme/clip-resnet18"]
    assert all("resnet18" in name for name in listed)
    assert "Detection:" not in result.stderr
    assert [query["search"] for query in asked] == [["resnet18"]] * 2
    result = CliRunner().invoke(main, ["models", "s*n_v2_?", "--quiet"])
    assert [name for name in result.stdout.split() if "/" not in name] == ["swin_v2_b", "swin_v2_s", "swin_v2_t"]


def test_without_a_pattern_no_hub_is_asked(asked: list[dict[str, list[str]]]) -> None:
    listed = CliRunner().invoke(main, ["models", "--quiet"]).stdout.split()
    assert listed[: len(model_names())] == model_names()
    assert asked == []


def test_what_cannot_be_searched_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    result = CliRunner().invoke(main, ["models", "resnet18"])
    assert result.exit_code == 0
    assert "timm/resnet18" in result.stdout
    (said,) = (line for line in result.stderr.splitlines() if "not searched" in line)
    assert said.startswith("The Hugging Face hub is not searched: it cannot be reached (")
    result = CliRunner().invoke(main, ["models", "nothinglikethis"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "No name matches 'nothinglikethis'\n" in result.stderr
