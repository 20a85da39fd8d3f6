"""Names that mean harm in the live page, whose content security policy is switched off for that."""

from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlencode

import pytest
from asking import network
from browser import Browser
from hostile_text import CLOSING, HOSTILE, assert_harmless, without_policy
from live import settled
from PIL import Image
from selenium.webdriver.common.keys import Keys

from ebcli.models import load_model

NETWORK = """
import torch
from hostile_text import CLOSING, HOSTILE
from several_inputs import RedAndTable
from torch import nn
import ebcli

LAYERS = [text.replace(".", "") for text in (*HOSTILE, *CLOSING)]


class Hostile(RedAndTable):
    preprocessing = ebcli.Preprocessing(resize=32, crop=32, mean=0.0, std=1.0)
    categories = HOSTILE[1], CLOSING[0]
    columns = HOSTILE[0], HOSTILE[2], CLOSING[1]

    def __init__(self):
        super().__init__()
        self.act = nn.Sequential()
        for layer in LAYERS:
            self.act.add_module(layer, nn.ReLU())

    def other_inputs(self, path):
        return torch.ones(3)
"""


def test_no_text_is_a_script(
    served: Callable[..., str], browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ebcli.run.explainer.load_model", load_model)
    model = Path(f"{HOSTILE[1]}.py")
    model.write_text(NETWORK)
    photos = Path(HOSTILE[2])
    photos.mkdir()
    for name in HOSTILE:
        Image.new("RGB", (40, 30), "red").save(photos / f"{name}.png")
    networks = [
        network(f"{model}:Hostile", f"act.{text.replace('.', '')}") for text in (HOSTILE[1], CLOSING[0])
    ]
    with without_policy(browser):
        address = served(*networks, paths=(str(photos),))
        browser.visit(address)
        settled(browser)
        assert_harmless(browser)
        query = {"target": "1", "against": "0", "network": "1", "b-photo": f"{photos}/{HOSTILE[0]}.png"}
        browser.visit(f"{address}/?{urlencode(query)}")
        settled(browser, network="1")
        browser.write(".target", CLOSING[1])
        browser.press(Keys.ENTER)
        browser.until(lambda: CLOSING[1] in browser.one(".note").text)
        assert_harmless(browser)
