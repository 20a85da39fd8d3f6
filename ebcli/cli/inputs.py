"""The inputs of a command beside those that it names: on stdin, in a list, and one part among many processes."""

import codecs
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import IO

import click

from ebcli.cli.console import note
from ebcli.cli.options import Options
from ebcli.errors import ConfigurationError
from ebcli.files.naming import STDIN
from ebcli.files.paths import path_of
from ebcli.run.plan import RunPlan

_LONGEST_LIST = 1 << 28  # bytes; millions of paths


def with_listed(images: tuple[Path, ...], from_file: IO[bytes] | None, null: bool) -> tuple[Path, ...]:
    """Images, and those in a list, if there is one. Raises UsageError if it cannot be read as one."""
    if from_file is None:
        return images
    if STDIN in images and getattr(from_file, "name", "<stdin>") == "<stdin>":
        raise click.UsageError("stdin is either an image or a list: drop - or --from-file -")
    return images + _read_list(from_file, null)


def with_stdin(plan: RunPlan, options: Options) -> RunPlan:
    """A plan with the image on stdin, if it names that. Raises ConfigurationError if there is none."""
    if STDIN not in plan.inputs.images:
        return plan
    return replace(plan, inputs=replace(plan.inputs, stdin=_read(options["max_bytes"])))


def _read(limit: int) -> bytes:
    """The image on stdin."""
    redirect = "redirect an image to it, as in eb-saliency - < in.jpg"
    if sys.stdin.buffer.isatty():
        raise ConfigurationError(f"stdin is a terminal: {redirect}")
    content = sys.stdin.buffer.read(limit + 1)
    if len(content) > limit:
        raise ConfigurationError(f"stdin holds more than {limit} bytes: raise EB_SALIENCY_MAX_BYTES")
    if not content:
        raise ConfigurationError(f"stdin is empty: {redirect}")
    return content


def _read_list(file: IO[bytes], null: bool) -> tuple[Path, ...]:
    """The paths in a list; they are bytes, as not every file name is text."""
    content = file.read(_LONGEST_LIST + 1)
    problem = ""
    if len(content) > _LONGEST_LIST:
        problem = "is larger than 256 MiB: split it, or name directories"
    elif b"\0" in content and not null:
        problem = "contains NUL characters: add -0"
    if problem:
        raise click.UsageError(f"the list {click.format_filename(file.name)} {problem}")
    names = content.split(b"\0") if null else _lines(content)
    return tuple(path_of(os.fsdecode(name)) for name in names if name)


def _lines(content: bytes) -> list[bytes]:
    """Lines without their ends, also those of editors on Windows, which may begin a file with a byte order mark."""
    lines = content.removeprefix(codecs.BOM_UTF8).split(b"\n")
    if all(line.endswith(b"\r") for line in lines if line):
        return [line.removesuffix(b"\r") for line in lines]
    return lines


def shard_from_environment() -> tuple[int, int] | None:
    """The shard of one process among many, as torchrun and others number them from 0."""
    rank = os.environ.get("RANK", "")
    size = os.environ.get("WORLD_SIZE", "")
    if not (rank.isdecimal() and size.isdecimal()) or int(size) < 2:
        return None
    note(f"Processing shard {int(rank) + 1}/{size}, from RANK={rank} and WORLD_SIZE={size}")
    return int(rank) + 1, int(size)
