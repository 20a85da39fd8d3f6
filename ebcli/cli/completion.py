"""What the shell offers after Tab where Click alone cannot know; imports neither torch nor torchvision."""

from __future__ import annotations

from collections.abc import Iterable

from click import Context, Parameter
from click.shell_completion import CompletionItem


def models(_context: Context, _option: Parameter, incomplete: str) -> list[str]:
    """The names of the models."""
    from ebcli.models import model_names

    return _beginning(incomplete, model_names())


def colormaps(_context: Context, _option: Parameter, incomplete: str) -> list[str]:
    """The names of matplotlib's colormaps, without the reversed ones until an underscore asks for them."""
    from matplotlib import colormaps as registered

    return _beginning(incomplete, (name for name in registered if "_" in incomplete or not name.endswith("_r")))


def weights(_context: Context, _option: Parameter, incomplete: str) -> list[str] | list[CompletionItem]:
    """What stands for weights of any model, else files."""
    return _beginning(incomplete, ("DEFAULT", "none")) or [CompletionItem(incomplete, type="file")]


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
