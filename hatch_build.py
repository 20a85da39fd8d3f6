"""The README with absolute links, and manual pages for share/man/man1 from the commands' help texts."""

from __future__ import annotations

import os
import re
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

WIDTH = 72
# the start of a link or a picture in Markdown that is relative
RELATIVE = re.compile(r"(!\[[^\]]*)?\]\((?![\w+.-]+:|#)")


class Links(MetadataHookInterface):
    """The package index shows the README alone, so its links lead to this version's files in the repository.

    Without an address of the repository, the metadata name none, and the README is as it is.
    """

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        home, version = self.config.get("home"), metadata["version"]
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["urls"] = {}
        if home:
            metadata["urls"] = {
                "Homepage": home,
                "Documentation": f"{home}/blob/main/docs/index.md",
                "Changelog": f"{home}/blob/main/CHANGELOG.md",
                "Issues": f"{home}/issues",
            }
            text = absolute_links(text, home, f"v{version}")
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def absolute_links(text: str, home: str, tag: str) -> str:
    """Make the relative links and pictures of a Markdown text absolute, code blocks left alone."""
    page, picture = f"{home}/blob/{tag}/", f"{home}/raw/{tag}/"
    parts = re.split(r"(^```.*?^```$)", text, flags=re.DOTALL | re.MULTILINE)
    parts[::2] = [
        RELATIVE.sub(lambda found: f"{found[1] or ''}]({picture if found[1] else page}", part)
        for part in parts[::2]
    ]
    return "".join(parts)


class ManualPages(BuildHookInterface):
    PLUGIN_NAME = "custom"

    def initialize(self, _version: str, build_data: dict[str, Any]) -> None:
        sys.path.insert(0, self.root)
        from ebcli.cli.benchmark import benchmark
        from ebcli.cli.saliency import run

        folder = Path(self.root, "build/man")
        folder.mkdir(parents=True, exist_ok=True)
        for name, command, other in (
            ("eb-saliency", run, "-benchmark"),
            ("eb-saliency benchmark", benchmark, ""),
        ):
            page = folder / f"{name.replace(' ', '-')}.1"
            text = manual_page(name, command, self.metadata.version, f"eb-saliency{other}")
            page.write_text(text, encoding="utf-8")
            build_data["shared_data"][str(page)] = f"share/man/man1/{page.name}"


def manual_page(name: str, command: click.Command, version: str, see_also: str) -> str:
    """A command's manual page, in the macros of man(7). Unlike click-man's, it has defaults and epilogs."""
    # https://reproducible-builds.org/specs/source-date-epoch/
    date = time.strftime("%Y-%m-%d", time.gmtime(int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))))
    context = click.Context(command, info_name=name, **command.context_settings)
    sentence = re.split(r" \(|[:.]", command.help or "")[0]
    title = name.upper().replace(" ", "-")
    lines = [
        f'.TH {title} 1 "{date}" "{name} {version}" "User Commands"',
        ".SH NAME",
        f"{_escaped(name)} \\- {_escaped(sentence)}",
        ".SH SYNOPSIS",
        *_synopsis(context),
        ".SH DESCRIPTION",
        *_paragraphs(command.help),
        ".SH OPTIONS",
        *_options(context),
    ]
    commands = {**getattr(command, "commands", {}), **getattr(command, "commands_beside", {})}
    for subname, subcommand in sorted(commands.items()):
        if isinstance(subcommand, click.Group):  # has a page of its own
            continue
        prefix = context.auto_envvar_prefix if isinstance(command, click.Group) else None
        # without the arguments of a run
        parent = click.Context(click.Group(), info_name=name, auto_envvar_prefix=prefix)
        inner = click.Context(subcommand, info_name=subname, parent=parent, **subcommand.context_settings)
        title = _escaped(f"{name} {subname}")
        lines += [
            f".SH {title.upper()}",
            *_synopsis(inner),
            ".PP",
            *_paragraphs(subcommand.help),
            *_options(inner),
        ]
    lines += [".SH NOTES", *_paragraphs(command.epilog), ".SH SEE ALSO", f".BR {_escaped(see_also)} (1)"]
    return "\n".join(lines) + "\n"


def _synopsis(context: click.Context) -> list[str]:
    return [
        f".B {_escaped(context.command_path)}",
        *_text(" ".join(context.command.collect_usage_pieces(context))),
    ]


def _options(context: click.Context) -> Iterator[str]:
    for parameter in context.command.get_params(context):
        record = parameter.get_help_record(context)
        if isinstance(parameter, click.Option) and record is not None:
            names = re.sub(r"(?<!\S)(-[\w-]+)", r"\\fB\1\\fR", record[0].replace("\\", "\\e"))
            yield from (".TP", names.replace("-", "\\-"), *_text(record[1]))


def _paragraphs(text: str | None) -> list[str]:
    paragraphs = [_text(paragraph) for paragraph in re.split(r"\n\s*\n", (text or "").strip())]
    return [line for paragraph in paragraphs for line in (".PP", *paragraph)][1:]


def _text(text: str) -> list[str]:
    """Wrap a text, and escape what roff would read as a request."""
    lines = textwrap.wrap(" ".join(text.split()), WIDTH, break_long_words=False, break_on_hyphens=False)
    return [re.sub(r"^(?=[.'])", r"\\&", _escaped(line)) for line in lines]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\e").replace("-", "\\-")
