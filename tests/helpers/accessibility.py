"""Whether everybody can use a page: by axe-core, which Deno downloads from npm, and by keyboard."""

import functools
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
from browser import Browser
from selenium.webdriver.common.keys import Keys

_SCRIPTS = Path(__file__).parents[1] / "pages"

# Large letters need the contrast of small ones
_SETTINGS = """
const ratio = { expected: 4.5 };
axe.configure({ checks: [{ id: "color-contrast", options: { contrastRatio: { normal: ratio, large: ratio } } }] });
"""
# The names of the elements that can be seen and used; pages may make the elements anew
_CONTROLS = """
const modal = document.querySelector("dialog[open]") ?? document;
const name = (one) => [one.tagName, one.id || one.className, one.name, one.value, one.title, one.textContent].join(" ");
const isSeen = (one) => one.checkVisibility({ visibilityProperty: true }) && one.getClientRects().length;
const controls = [...modal.querySelectorAll("a[href], button, input, select, textarea, summary, [tabindex]")]
  .filter((one) => !one.disabled && !one.autofocus && isSeen(one)).map(name);
"""
# Nothing is reached, and the next Tab leads to the first control
_START = """
window.reached = new Set();
const start = document.createElement("span");
start.tabIndex = -1;
(document.querySelector("dialog[open]") ?? document.body).prepend(start);
start.focus();
start.remove();
"""
# Whether anything has the focus
_MARK = f"""
{_CONTROLS}
window.reached.add(name(document.activeElement));
return document.activeElement !== document.body;
"""
# The key that leads to the next of the group of the focused element, and how many are in it
_GROUP = """
const one = document.activeElement;
if (one.type === "radio") return ["ArrowRight", document.getElementsByName(one.name).length];
const tabs = one.closest("[role=tablist]");
if (tabs) return [tabs.ariaOrientation === "vertical" ? "ArrowDown" : "ArrowRight", tabs.children.length];
return one.matches(".open") ? ["Home", document.querySelectorAll(".open").length] : ["", 0];
"""


@functools.cache
def _axe() -> str:
    """The script of axe-core; Deno keeps it after the first time."""
    deno = Path(sysconfig.get_path("scripts")) / "deno"
    lock = _SCRIPTS / "deno.lock"
    command = [
        deno,
        "run",
        "--quiet",
        "--no-config",
        "--no-prompt",
        "--allow-env=NODE_ENV",
        "--frozen",
        f"--lock={lock}",
        _SCRIPTS / "axe.js",
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        pytest.skip(f"axe-core cannot be downloaded: {result.stderr.strip()}")
    return result.stdout


def violations(browser: Browser) -> list[str]:
    """What axe-core finds on the page as it is now: the rule, and where."""
    browser.settle()
    browser.run(f"if (!window.axe) {{ {_axe()}; {_SETTINGS} }}")
    found = browser.driver.execute_async_script(
        "axe.run({ resultTypes: ['violations'] }).then(...Array(2).fill(arguments[0]))"
    )
    return [
        f"{rule['id']}: {node['html'][:200]}: {node['failureSummary']}"
        for rule in found["violations"]
        for node in rule["nodes"]
    ]


def unreached(browser: Browser, settle: Callable[[], object] = lambda: None) -> list[str]:
    """The controls that are seen, but get the focus neither by Tab nor, from one of their group, by an arrow key.

    Args:
        browser: the page.
        settle: waits until the page has done what an arrow key begins.
    """

    def press(key: str) -> bool:
        browser.actions(duration=0).send_keys(key).perform()
        return browser.run(_MARK)

    browser.run(_START)
    for _ in browser.run(f"{_CONTROLS} return controls"):
        if not press(Keys.TAB):
            break
        key, members = browser.run(_GROUP)
        for _ in range(members):
            press(Keys.ARROW_DOWN if key == "ArrowDown" else Keys.ARROW_RIGHT)
        if key == "Home":  # other groups begin anew behind their last member
            press(Keys.HOME)
        settle()
    return browser.run(f"{_CONTROLS} return controls.filter((one) => !window.reached.has(one))")
