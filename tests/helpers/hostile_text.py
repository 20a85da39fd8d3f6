"""Text that would run a script in a page that does not escape it, and whether one ran."""

from collections.abc import Iterator
from contextlib import contextmanager

from browser import Browser

HARM = "window.harmed=1"
HOSTILE = (  # names of files cannot have slashes
    f"<script>{HARM}",
    f'"><img src=x onerror={HARM}>',
    f"' onfocus={HARM} autofocus='",
    f"javascript:{HARM}",
    f"\u2028{HARM}<!--\u2029",
    f"`${{{HARM}}}`",
    f"-->{{{{ {HARM} }}}}&quot;<svg onload={HARM}>",
)
CLOSING = f"</script><script>{HARM}</script>", f"</textarea></title></style><img src=x onerror={HARM}>"


@contextmanager
def without_policy(browser: Browser) -> Iterator[None]:
    """The browser ignores the content security policy of pages, so that their escaping alone protects them."""
    browser.devtools("Page.setBypassCSP", enabled=True)
    try:
        yield
    finally:
        browser.devtools("Page.setBypassCSP", enabled=False)


def assert_harmless(browser: Browser) -> None:
    """No hostile text of this module became an element, an attribute or a script, as it does if it is not escaped."""
    browser.settle()
    refused = "Failed to load resource"  # what a server answers to a wrong question
    assert [complaint for complaint in browser.complaints() if refused not in complaint] == []
    assert browser.all("[onerror], [onfocus], [onload], img[src=x], [href^='javascript:']") == []
    assert browser.run("return window.harmed") is None
    # as a check of this check: it would run
    browser.run(
        "document.body.append(document.createRange().createContextualFragment(arguments[0]))", HOSTILE[1]
    )
    browser.until(lambda: browser.run("return window.harmed") == 1)
