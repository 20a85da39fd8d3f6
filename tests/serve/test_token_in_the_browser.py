"""The token stays in the page: no cookie, no address, no other port has it; and pages without it say how to go on."""

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from browser import Browser
from color_net import RED, painted
from live import CATS, CATS_IN_ADDRESSES, SIZE, settled, state

TOKEN = "s3cret-_"
SECRETS = """
const { cookie } = document, { hash, href } = location;
return { cookie, hash, href, local: JSON.stringify({...localStorage}), tab: JSON.stringify({...sessionStorage}) };
"""
ASK = """
const [address, done] = arguments;
const asking = fetch(address, { credentials: "include", mode: "no-cors" });
asking.then((answer) => answer.text()).then(done, () => done("refused"));
"""
WITHOUT_TOKEN = "This page opens with its token."


@pytest.fixture
def neighbor() -> Iterator[tuple[str, list[str]]]:
    """Another program's server on this machine: its address, and all that browsers tell it."""
    heard = list[str]()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append(f"{self.path}\n{self.headers}")
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<title>another</title>")

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", heard
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def locked(pictures: None, served: Callable[..., str]) -> str:
    return served(paths=("cats",), token=TOKEN)


def entry(browser: Browser) -> str:
    return browser.one("#entry").text if browser.all("#entry") else ""


def test_the_token_is_in_the_page_alone(
    locked: str, browser: Browser, neighbor: tuple[str, list[str]]
) -> None:
    address, heard = neighbor
    browser.visit(f"{locked}/#token={TOKEN}")
    settled(browser)
    browser.settle()
    assert browser.complaints() == []
    secrets = browser.run(SECRETS)
    assert secrets.pop("tab").count(TOKEN) == 1
    assert TOKEN not in str(secrets)
    assert (secrets["cookie"], secrets["hash"]) == ("", "")
    assert not [asked for asked in browser.requests() if TOKEN in asked.partition("#")[0]]
    shown = browser.one(".photo").get_attribute("src")
    assert shown.startswith(f"blob:{locked}/")
    browser.driver.refresh()  # the tab still has it
    settled(browser)
    assert not browser.one("#entry").is_displayed()
    browser.run("location.href = arguments[0]", address)  # as by a link
    browser.until(lambda: browser.driver.title == "another")
    assert heard
    assert not [words for words in heard if TOKEN in words or "cookie" in words.lower() or locked in words]
    assert browser.run(SECRETS)["tab"] == "{}"
    asked = browser.driver.execute_async_script(ASK, f"{locked}/status")
    assert "cats" not in asked
    assert httpx.get(f"{locked}/status").status_code == 401


def test_a_permalink_without_the_token_says_how_to_open_it(locked: str, browser: Browser) -> None:
    browser.visit(f"{locked}/?photo={CATS_IN_ADDRESSES[1]}&target=3")
    browser.until(lambda: WITHOUT_TOKEN in entry(browser))
    assert not browser.one("#bar").is_displayed()
    assert browser.one("#entry label").text == "Address"
    browser.write("#address", "wrong")
    browser.one("#entry button").click()
    browser.until(lambda: browser.one("#address").get_attribute("value") == "")
    browser.until(lambda: WITHOUT_TOKEN in entry(browser))
    browser.write("#address", f"{locked}/#token={TOKEN}\n")
    settled(browser, photo=CATS[1], target="3")
    assert not browser.one("#entry").is_displayed()
    assert TOKEN not in browser.driver.current_url


def test_a_photo_that_is_not_in_the_list_is_a_sentence(page: str, browser: Browser) -> None:
    browser.visit(f"{page}/?photo=dogs/rex.jpg")
    browser.until(lambda: "'dogs/rex.jpg' is not among the photos" in browser.one(".note").text)
    browser.all(".thumbnail")[1].click()
    settled(browser, photo=CATS[1])
    browser.visit(f"{page}/?photo=added-0123456789abcdef")
    browser.until(lambda: "was added to the page, and is gone: add it again" in browser.one(".note").text)


def test_photos_that_were_added_outlive_their_server(
    locked: str, browser: Browser, served: Callable[..., str]
) -> None:
    for name, box in (("other.png", (90, 90, 180, 180)), ("mine.png", (10, 10, 90, 90))):
        painted(SIZE, (RED, box)).save(name)
    browser.visit(f"{locked}/#token={TOKEN}")
    settled(browser)
    for name in ("other.png", "mine.png"):
        browser.one("#files").send_keys(str(Path(name).resolve()))
        browser.until(lambda name=name: browser.one(".title").text == name)
        shown = settled(browser)
    (key,) = shown["photo"]
    assert key.startswith("added-")
    Path("other.png").unlink()  # which browsers do not copy
    served.stop()  # type: ignore[attr-defined]
    browser.all(".thumbnail")[0].click()
    browser.until(lambda: "The server does not answer." in entry(browser))
    assert served(paths=("cats",), token="a-new-0ne", port=urlsplit(locked).port) == locked
    browser.write("#address", f"{locked}/#token=a-new-0ne\n")
    settled(browser, photo=key)
    names = [item.get_attribute("title") for item in browser.all(".thumbnail")]
    assert names == [*CATS, "mine.png"]
    assert browser.one("#trouble").text == "other.png is gone: add it again"
    browser.all(".thumbnail")[3].click()
    settled(browser)
    assert browser.one(".title").text == "mine.png"
    assert state(browser)["photo"].startswith("added-")
