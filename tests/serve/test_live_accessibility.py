"""The live page for everybody: axe-core finds nothing in any of its states, and all of it is reached by keyboard."""

from collections.abc import Callable

import pytest
from accessibility import unreached, violations
from browser import Browser
from live import settled
from selenium.webdriver.common.keys import Keys


@pytest.mark.parametrize(("size", "scheme"), [((1280, 800), "light"), ((390, 844), "dark")])
def test_all_states_of_the_live_page(page: str, browser: Browser, size: tuple[int, int], scheme: str) -> None:
    browser.visit(page, size, scheme)
    settled(browser)
    browser.until(lambda: browser.all(".found [role=tab]"))

    def settle() -> None:
        browser.until(lambda: all(button.is_enabled() for button in browser.all(".copy")))

    settle()
    assert violations(browser) == []
    assert unreached(browser, settle) == []
    browser.one("#keys summary").click()
    browser.run("document.querySelector('.fact button').focus()")
    browser.one("#compare").click()
    settled(browser, pane=1)
    settle()
    assert violations(browser) == []
    browser.one("#compare").click()
    settle()
    browser.write(".against", "walrus")  # also if another class is chosen
    browser.press(Keys.ENTER)
    browser.until(lambda: "walrus" in browser.one(".note").text)
    assert violations(browser) == []
    assert len(browser.all(".found [role=tab][tabindex='0']")) == 1  # though none is chosen


def test_a_page_without_photos(served: Callable[..., str], browser: Browser) -> None:
    browser.visit(served(paths=()))
    browser.until(lambda: "Drop a photo" in browser.one(".note").text)
    assert violations(browser) == []
    assert unreached(browser) == []


def test_a_page_without_its_token(served: Callable[..., str], browser: Browser) -> None:
    browser.visit(served(token="s3cret"))
    browser.until(lambda: browser.one("#entry").is_displayed())
    assert violations(browser) == []
    assert unreached(browser) == []


def test_the_camera(page: str, browser: Browser) -> None:
    browser.visit(f"{page}/?photo=camera")
    browser.until(lambda: browser.one(".rate").text)
    browser.all(".found [role=tab]")[1].click()
    browser.until(lambda: browser.one(".release").is_displayed())
    assert violations(browser) == []
