"""The names of the networks."""

import sys

import torchvision
from stub_run import invoke

from ebcli.models import model_names
from ebcli.models.names import torchvision_names

VGG = ["vgg11", "vgg13", "vgg16", "vgg19"]


def test_torchvisions_classifiers_and_the_bundled_network_are_listed():
    registered = torchvision.models.list_models(module=torchvision.models)
    assert model_names() == sorted([*registered, "efficientnet_lite0"])


def test_without_torchvisions_source_code_the_registry_is_used(monkeypatch):
    expected = torchvision_names()
    torchvision_names.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert torchvision_names() == expected


def test_the_names_are_those_of_the_registry_for_each_task():
    for task in ("detection", "segmentation", "video"):
        assert torchvision_names(task) == sorted(
            torchvision.models.list_models(module=getattr(torchvision.models, task))
        )


def test_a_name_in_the_decorator_replaces_the_function_name(tmp_path, monkeypatch):
    source = tmp_path / "nets.py"
    source.write_text(
        "@register_model()\ndef plain(): ...\n"
        "@register_model('given')\ndef first(): ...\n"
        "@register_model(name='keyword')\n@other(\n    'x'\n)\ndef second(): ...\n"
        "@other()\ndef unregistered(): ...\n"
    )
    torchvision_names.cache_clear()
    monkeypatch.setattr("ebcli.models.names.source_files", lambda _: [source])
    assert torchvision_names("video") == ["given", "keyword", "plain"]
    torchvision_names.cache_clear()


def test_a_pattern_filters_the_names_of_torchvision_and_timm():
    result = invoke("models", "ResNet18")
    listed = result.stdout.split()
    assert listed[0] == "resnet18"
    assert "timm/resnet18" in listed
    assert all("resnet18" in name for name in listed)
    assert "Detection:" not in result.stderr
    listed = invoke("models", "s*n_v2_?", "vgg1?", "--quiet").stdout.split()
    assert [name for name in listed if "/" not in name] == [*(f"swin_v2_{size}" for size in "bst"), *VGG]
    assert [name for name in listed if "/" in name] == [f"timm/{name}" for name in VGG]


def test_without_a_pattern_timm_is_not_listed():
    listed = invoke("models", "--quiet").stdout.split()
    assert listed[: len(model_names())] == model_names()
    assert not any(name.startswith("timm/") for name in listed)


def test_what_cannot_be_listed_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    result = invoke("models", "resnet18")
    assert (result.exit_code, result.stdout) == (0, "resnet18\n")
    assert (
        "timm is not searched: this needs the package timm: pip install 'eb-saliency[timm]'\n"
        in result.stderr
    )
    result = invoke("models", "nothinglikethis")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "No name matches 'nothinglikethis'\n" in result.stderr
