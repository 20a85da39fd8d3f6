"""Properties of all tested networks of timm and Hugging Face, as in test_zoo.py for torchvision."""

import csv
from fnmatch import fnmatch
from pathlib import Path

import library_models
import pytest
import torch
import transformers
import zoo
from packaging.version import Version
from test_zoo import each

import ebcli
from benchmarks import library_table, models_table
from ebcli.models import layers

ROOT = Path(__file__).parents[2]
# Tokens of 16 x 16 pixels, and ResNet's layer3, which publications use; elsewhere, the default layer of an image of
# 64 x 64 pixels has nine cells a side, or some more
STRIDE_16 = {
    *(name for name in library_models.TIMM if "_patch16_" in name or "mixer" in name),
    *("timm/resnet18", "hf/vit", "hf/deit", "hf/beit", "hf/dinov2", "hf/dinov2_with_registers"),
}
NAMES = [*library_models.TIMM, *library_models.HUGGING_FACE]
# Those with parts that torchvision's networks do not have, or have otherwise; the other ones are marked slow
OWN_PARTS = {
    *(
        "timm/seresnet18",
        "timm/convnextv2_atto",
        "timm/vit_tiny_patch16_224",
        "timm/vit_medium_patch16_reg4_gap_256",
    ),
    *(
        "timm/deit_tiny_distilled_patch16_224",
        "timm/beit_base_patch16_224",
        "timm/mixer_s16_224",
        "timm/regnety_002",
    ),
    *("timm/swinv2_tiny_window8_256", "timm/mobilenetv4_hybrid_medium", "timm/ese_vovnet19b_dw"),
    *(
        "hf/vit",
        "hf/beit",
        "hf/dinov2_with_registers",
        "hf/swin",
        "hf/mobilenet_v1",
        "hf/segformer",
        "hf/poolformer",
    ),
    *("hf/pvt_v2", "hf/efficientnet"),
}


@each(NAMES, OWN_PARTS)
def test_marginal(name: str) -> None:
    specimen = library_models.small(name)
    plain = specimen.forward()
    assert plain.shape == (1, 10)
    sides = (4, 4) if name in STRIDE_16 else (9, 16)
    for result, (least, most) in zip(specimen.excite([specimen.layer, None]), (sides, (64, 64)), strict=True):
        assert torch.equal(result.logits, plain)
        assert result.relevance.isfinite().all()
        assert (result.relevance >= 0).all()
        # towards the pixels, class tokens and position embeddings take a large share
        assert (0.1 if result.layer else 0.01) < result.mass.item() <= 1 + 1e-4
        _, height, width = result.maps.shape
        assert least <= height == width <= most


@pytest.mark.one_in(2)
@each(NAMES, OWN_PARTS)
def test_mass_is_one_without_shifts(name: str) -> None:
    """If no constant is added to the signal, every active unit has an input that explains it."""
    specimen = library_models.small(name, shifts=False).double()
    assert specimen.excite(None).mass.item() == pytest.approx(1, abs=1e-6)
    result = specimen.excite(specimen.layer, contrastive=True)
    positive = result.relevance.clamp(min=0).sum().item()
    assert positive > 1e-11  # far above what rounding leaves of two maps that are nearly equal
    assert abs(result.relevance.sum().item()) <= 1e-4 * positive


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    "name",
    [
        "timm/seresnet18",
        "timm/ese_vovnet19b_dw",
        "timm/mobilenetv3_small_100",
        "timm/vit_tiny_patch16_224",
        "hf/vit",
    ],
)
def test_all_listed_layers_have_a_map_and_none_is_inside_a_gate(name: str) -> None:
    specimen = library_models.small(name)
    offered = [layer.name for layer in layers(zoo.as_loaded(specimen))]
    results = ebcli.excitation_backprop(specimen.net, specimen.inputs, 0, layer=offered)
    assert all(result.mass.item() > 0.01 for result in results)
    called = {part for layer in offered for part in layer.split(".")}
    # modules of squeeze-excitations, queries and keys in these libraries
    assert not {"conv_reduce", "conv_expand", "q_norm", "k_norm", "q_proj", "k_proj"} & called
    assert not any(layer.endswith((".se.fc1", ".se.fc2", ".attn.fc", ".attn.gate")) for layer in offered)


def test_the_table_lists_every_network() -> None:
    rows = models_table.read(ROOT / "docs/networks/models.csv")
    assert list(rows) == [
        *zoo.CLASSIFIERS,
        *zoo.VIDEO,
        *zoo.SEGMENTATION,
        *zoo.DETECTORS,
        *NAMES,
        *library_models.ULTRALYTICS,
        *library_models.FILES,
    ]
    assert {row["same_logits"] for row in rows.values()} == {"yes"}
    assert models_table.families(rows) in (ROOT / "docs/networks.md").read_text(encoding="utf-8")
    patterns = [pattern for family in models_table.FAMILIES.values() for pattern in family]
    for name in rows:
        assert sum(fnmatch(name, pattern) for pattern in patterns) == ("/" not in name), name


INITIALIZED_OTHERWISE = pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.20"), reason="its untrained networks have other values"
)


@pytest.mark.parametrize(
    "name",
    [
        *(
            pytest.param(name, marks=pytest.mark.release)
            for name in ("mobilenet_v3_small", "efficientnet_lite0")
        ),
        pytest.param("timm/vit_tiny_patch16_224", marks=pytest.mark.release),
        pytest.param("hf/dinov2", marks=INITIALIZED_OTHERWISE),
        pytest.param("ultralytics/yolo26n-seg", marks=pytest.mark.release),
    ],
)
def test_the_table_is_what_its_script_measures(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # networks may be explained jointly
    measured, row = models_table.measure(name), models_table.read(ROOT / "docs/networks/models.csv")[name]
    for column, value in measured.items():
        if column.startswith("mass"):
            assert float(row[column]) == pytest.approx(float(value), abs=1e-3)
        else:
            assert row[column] == value


def test_the_table_of_timm_is_what_its_script_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with (ROOT / "docs/networks/timm.csv").open(encoding="utf-8", newline="") as file:
        rows = {row["family"]: row for row in csv.DictReader(file)}
    assert not [family for family, row in rows.items() if row["same_logits"] != "yes" and not row["reason"]]
    row, measured = rows["vision_transformer"], library_table.measure("vision_transformer", "test_vit")
    assert float(row.pop("mass")) == pytest.approx(float(measured.pop("mass")), abs=1e-3)
    assert row == {"reason": "", **measured}
