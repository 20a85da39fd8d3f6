"""Fills in the templates. What is told in a page is data: Jinja escapes it, and the policy allows no other scripts."""

import base64
import hashlib
from functools import lru_cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


def page(template: str, **values: Any) -> bytes:
    """The HTML of a page.

    Args:
        template: a file beside this one, which extends ``shell.html``.
        values: what the template names.
    """
    return _environment().get_template(template).render(values).encode(errors="replace")


@lru_cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("ebcli", "pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.globals["source"] = _source
    environment.filters["digest"] = _digest
    return environment


def _source(*names: str) -> Markup:
    """The content of files beside this one."""
    folder = files("ebcli.pages")
    return Markup("\n").join(Markup(folder.joinpath(name).read_text("utf-8")) for name in names)


def _digest(content: str) -> str:
    """What the policy of a page calls a style or script that it allows."""
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode(errors="replace")).digest()).decode()
