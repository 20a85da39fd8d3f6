"""The live page in Chromium: what it shows, and its address."""

from urllib.parse import parse_qs, quote, urlsplit

from browser import Browser

SIZE = (300, 200)
CATS = ("cats/<img src=x onerror=alert(1)>.png", "cats/a cat.jpg", "cats/b cat.png")  # as the page calls them
CATS_IN_ADDRESSES = [*map(quote, CATS)]


def settled(browser: Browser, pane: int = 0, **expected: str) -> dict[str, list[str]]:
    """The address of the map that a pane shows, once it is the one that is expected."""

    def shown() -> dict[str, list[str]] | None:
        query = browser.run("return document.querySelectorAll('.pane')[arguments[0]]?.dataset.shown", pane)
        found = parse_qs(query or "")
        is_expected = all(found.get(name, [""]) == [value] for name, value in expected.items())
        return found if query and is_expected and not browser.all(".pane[aria-busy], .found.stale") else None

    return browser.until(shown)


def command(browser: Browser) -> str:
    """The command line, once it belongs to the map that is shown."""
    shown = parse_qs(browser.one(".pane").get_attribute("data-shown"))

    def fits() -> bool:
        query = parse_qs(urlsplit(download(browser)).query)
        return all(query.get(name) == value for name, value in shown.items())

    browser.until(fits)
    return browser.one(".command").text


def download(browser: Browser) -> str:
    """The path and the query of the picture that can be downloaded; empty while there is none."""
    button = browser.one(".download")
    return (button.get_attribute("data-address") or "") if button.is_enabled() else ""


def answers(browser: Browser) -> list[str]:
    """The maps that were asked for since the last call."""
    return [address for address in browser.requests() if "/maps?" in address]


def state(browser: Browser) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(urlsplit(browser.driver.current_url).query).items()}
