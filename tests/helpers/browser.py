"""A page in a real browser, without a window."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from PIL import Image
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from stub_run import program

if TYPE_CHECKING:
    from selenium.webdriver import ActionChains  # slow to import, as all of Selenium that drives
    from selenium.webdriver.remote.webelement import WebElement

T = TypeVar("T")


class Browser:
    """Chromium, and short words for what tests do with it."""

    def __init__(self, chromium: str, chromedriver: str) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        camera = ("use-fake-device-for-media-stream", "use-fake-ui-for-media-stream")  # which draws a clock
        for argument in (
            "headless=new",
            "no-sandbox",
            "disable-dev-shm-usage",
            "force-color-profile=srgb",
            *camera,
        ):
            options.add_argument(f"--{argument}")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options, webdriver.ChromeService(chromedriver))

    def open(self, page: Path, size: tuple[int, int] = (1200, 900), scheme: str = "light") -> None:
        """A gallery page."""
        self.visit(page.absolute().as_uri(), size, scheme)
        self.until(lambda: self.count() is not None)

    def visit(self, address: str, size: tuple[int, int] = (1200, 900), scheme: str = "light") -> None:
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            width=size[0],
            height=size[1],
            deviceScaleFactor=1,
            mobile=False,
        )
        self.devtools(
            "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
        )
        for kind in ("browser", "performance"):  # what is told of an earlier page
            self.driver.get_log(kind)
        self.driver.get(address)

    def devtools(self, command: str, **parameters: Any) -> Any:
        return self.driver.execute_cdp_cmd(command, parameters)

    @contextmanager
    def finger(self) -> Iterator[Callable[..., None]]:
        """A function that touches the page: a kind of event, such as ``touchStart``, and points (x, y), in pixels."""

        def touch(kind: str, *points: tuple[float, float]) -> None:
            at = [{"x": x, "y": y} for x, y in points]
            self.devtools("Input.dispatchTouchEvent", type=kind, touchPoints=at)

        self.devtools("Emulation.setTouchEmulationEnabled", enabled=True)
        try:
            yield touch
        finally:
            self.devtools("Emulation.setTouchEmulationEnabled", enabled=False)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def press(self, *keys: str) -> None:
        """To whatever has the focus."""
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    def write(self, selector: str, text: str) -> None:
        """In place of what is there."""
        self.one(selector).send_keys(Keys.CONTROL + "a", Keys.BACKSPACE)
        self.one(selector).send_keys(text)

    def choose(self, selector: str, option: str) -> None:
        from selenium.webdriver.support.select import Select

        Select(self.one(selector)).select_by_visible_text(option)

    def actions(self, **options: Any) -> ActionChains:
        """What a pointer and a keyboard do, one thing after another."""
        return webdriver.ActionChains(self.driver, **options)

    def count(self) -> int | None:
        """How many images the page says that it shows."""
        words = self.one("#count").text.replace(",", "").split()
        return int(words[0]) if words else None

    def names(self) -> list[str]:
        """The file names on the cards, from the first to the last that are there."""
        return self.run(
            "return [...document.querySelectorAll('.card .name bdi')].map((name) => name.textContent.toWellFormed())"
        )

    def until(self, condition: Callable[[], T]) -> T:
        from selenium.webdriver.support.wait import WebDriverWait

        return WebDriverWait(self.driver, 5, 0.02).until(lambda _: condition())

    def settle(self) -> None:
        """Until all pictures are loaded, or are known to be broken, and painted."""
        self.until(lambda: self.run("return [...document.images].every((image) => image.complete)"))
        self.driver.execute_async_script(
            "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done))"
        )

    def pixels(self, element: WebElement) -> np.ndarray:
        """(h, w, 3), as they are on the screen."""
        self.settle()
        return np.asarray(Image.open(io.BytesIO(element.screenshot_as_png)).convert("RGB")).astype(int)

    def complaints(self) -> list[str]:
        """All that the page, or the browser about it, has written to the console."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[str]:
        """All addresses that were asked for since the page was opened."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]


def start() -> Iterator[Browser]:
    """For a fixture."""
    browser = Browser(program("chromium"), program("chromedriver"))
    yield browser
    browser.driver.quit()
