"""Write the lists of PAGES, which are read on GitHub; hooks.py replaces those of names and options on the site.

python docs/make_lists.py
"""

from __future__ import annotations

import inspect
import pkgutil
import re
from pathlib import Path

import click

from ebcli.cli.saliency import main, run
from ebcli.methods.table import find_method

PAGES = [Path(__file__).with_name(name) for name in ("api.md", "reference.md", "python.md", "methods.md")]
LIST = re.compile(
    r"(<!-- (names|options|fields|arguments|members|methods): (.*?) -->\n).*?(<!-- end -->)", re.DOTALL
)
FIELD = re.compile(r"^    (\w[\w, ]*): (.*(?:\n {5,}.*)*)", re.MULTILINE)


def written(page: str) -> str:
    """The page with its lists as the code has them."""
    lists = {
        "names": names,
        "options": options,
        "fields": fields,
        "arguments": arguments,
        "members": members,
        "methods": methods,
    }
    return LIST.sub(lambda found: found[1] + lists[found[2]](found[3]) + found[4], page)


def names(listed: str) -> str:
    """A row for each name: the first sentence of its docstring."""
    rows = [f"| `{name}` | {_first_sentence(pkgutil.resolve_name(name))} |\n" for name in listed.split()]
    return "\n| name | |\n|---|---|\n" + "".join(rows) + "\n"


def arguments(listed: str) -> str:
    """A row for each argument in the docstring of a function."""
    _, _, described = (inspect.getdoc(pkgutil.resolve_name(listed)) or "").partition("Args:\n")
    rows = [
        f"| `{name}` | {_cell(text)[:-1]} |\n" for name, text in FIELD.findall(described.partition("\n\n")[0])
    ]
    return "\n| argument | |\n|---|---|\n" + "".join(rows) + "\n"


def members(listed: str) -> str:
    """A row for each public method and property of a class."""
    rows = []
    for name, member in vars(pkgutil.resolve_name(listed)).items():
        if name.startswith("_") or not inspect.getdoc(member):
            continue
        call = ""
        if inspect.isfunction(member):
            _, *parameters = inspect.signature(member).parameters
            call = f"({', '.join(parameters)})"
        rows.append(f"| `{name}{call}` | {_first_sentence(member)} |\n")
    return "\n| name | |\n|---|---|\n" + "".join(rows) + "\n"


def methods(listed: str) -> str:
    """A row for each method of maps: the first sentence of the function that computes it."""
    functions = {name: pkgutil.resolve_name(str(find_method(name).function)) for name in listed.split()}
    rows = [f"| `{name}` | {_first_sentence(function)} |\n" for name, function in functions.items()]
    return "\n| name | |\n|---|---|\n" + "".join(rows) + "\n"


def fields(listed: str) -> str:
    """A row for each attribute in the docstring of a class whose objects are written as JSON."""
    _, _, described = (inspect.getdoc(pkgutil.resolve_name(listed)) or "").partition("Attributes:\n")
    rows = [(name.replace(", ", "`, `"), text.replace("``", "`")) for name, text in FIELD.findall(described)]
    rows = [(name, re.sub(r"\bNone\b", "null", text)) for name, text in rows]
    return (
        "\n| field | |\n|---|---|\n"
        + "".join(f"| `{name}` | {_cell(text)[:-1]} |\n" for name, text in rows)
        + "\n"
    )


def options(listed: str) -> str:
    """A row for each option of a run; or of all other commands, unless a run has the same one."""
    if listed == "run":
        return "\n| option | |\n|---|---|\n" + "".join(f"| {row} |\n" for row in _rows(run).values()) + "\n"
    table = "\n| command | option | |\n|---|---|---|\n"
    for name, command in main.commands.items():
        parts = command.commands.values() if isinstance(command, click.Group) else (command,)
        rows = {
            row: None for part in parts for option, row in _rows(part).items() if option not in _rows(run)
        }
        table += "".join(f"| `{name}` | {row} |\n" for row in rows)
    return table + "\n"


def _rows(command: click.Command) -> dict[str, str]:
    """The rows of a command's options by their spelling, which includes what they take."""
    context = click.Context(command, **command.context_settings)
    shown = [
        one
        for one in command.get_params(context)
        if isinstance(one, click.Option) and "--help" not in one.opts
    ]
    records = filter(None, (option.get_help_record(context) for option in shown))
    return {spelling: f"`{_cell(spelling)}` | {_cell(text)}" for spelling, text in records}


def _first_sentence(described: object) -> str:
    text = " ".join((inspect.getdoc(described) or "").partition("\n\n")[0].split())
    return _cell(re.split(r"(?<=\.)\s(?=[A-Z`])", text)[0].replace(" * ", r" \* "))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(written(page.read_text(encoding="utf-8")), encoding="utf-8")
