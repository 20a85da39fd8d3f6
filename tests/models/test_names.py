"""The names of the networks."""

from __future__ import annotations

import torchvision

from ebcli.models import model_names
from ebcli.models.names import _registered, torchvision_names


def test_torchvisions_classifiers_and_the_bundled_network_are_listed():
    registered = torchvision.models.list_models(module=torchvision.models)
    assert model_names() == sorted([*registered, "efficientnet_lite0"])


def test_without_torchvisions_source_code_the_registry_is_used(monkeypatch):
    expected = torchvision_names()
    torchvision_names.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert torchvision_names() == expected


def test_a_name_in_the_decorator_replaces_the_function_name(tmp_path):
    source = tmp_path / "nets.py"
    source.write_text(
        "@register_model()\ndef plain(): ...\n"
        "@register_model('given')\ndef first(): ...\n"
        "@register_model(name='keyword')\n@other('x')\ndef second(): ...\n"
        "@other()\ndef unregistered(): ...\n"
    )
    assert list(_registered(source)) == ["plain", "given", "keyword"]
