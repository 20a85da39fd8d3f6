"""Networks whose maps were measured to be less faithful say so."""

from dataclasses import replace

import pytest
from PIL import Image
from runs import invoke, tiny_model

from benchmarks import evidence
from ebcli.models import model_names
from ebcli.models.names import caveat
from ebcli.run import explainer

DOUBTFUL = [
    "vit_b_16",
    "timm/vit_base_patch16_clip_224",
    "timm/deit3_small_patch16_224",
    "hf/google/vit-base-patch16",
]


@pytest.mark.parametrize("name", DOUBTFUL)
def test_doubts_about_vision_transformers(name):
    assert caveat(name).startswith(f"{name}'s maps may be wrong in part")


def test_no_doubts_about_others():
    doubtful = {name for name in model_names() if caveat(name)}
    assert doubtful == {name for name in model_names() if name.startswith("vit_")}
    for name in (
        "timm/mobilevit_xxs",
        "timm/maxvit_tiny_rw_224",
        "hf/microsoft/swin-tiny",
        "nets.py:activity",
    ):
        assert caveat(name) is None


def test_it_is_the_number_that_was_measured():
    default = {"task": "letters", "network": "ViT", "default": "True", "method": "contrastive"}
    (row,) = (row for row in evidence.read("trained") if default.items() <= row.items())
    assert f"{float(row['share']):.0%} of a map" in caveat("vit_b_16")


@pytest.mark.parametrize(("name", "count"), [("vit_tiny", 1), ("tiny", 0)])
def test_the_command_says_it_once(name, count, tmp_path, monkeypatch):
    monkeypatch.setattr(explainer, "load_model", lambda *_, **__: replace(tiny_model(), name=name))
    for photo in ("a.png", "b.png"):
        Image.new("RGB", (40, 40), "red").save(tmp_path / photo)
    result = invoke("-o", str(tmp_path / "maps"), str(tmp_path / "a.png"), str(tmp_path / "b.png"))
    assert result.exit_code == 0
    assert result.stderr.count("maps may be wrong in part") == count
