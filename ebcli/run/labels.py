"""The true classes of images: from a CSV file, or from the names of their directories. Imports no torch."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ebcli.errors import ConfigurationError
from ebcli.files.sources import Source
from ebcli.models.classes import Labels, read_labels, resolve_class
from ebcli.models.loaded import LoadedModel
from ebcli.run.plan_parts import InputOptions

FOLDERS = Path("folders")  # in place of a file: an image's class is its directory's name


def with_labels(
    sources: list[Source], inputs: InputOptions, loaded: LoadedModel, is_image: Callable[[Source], bool]
) -> list[Source]:
    """The same files, each with its true class as ``label``; with warnings if images have none, or labels no image.

    Args:
        sources: the files.
        inputs: their ``labels``, if there are any, are a CSV file of two columns, a file and its class by index or
            name; or ``FOLDERS``. A file is named by any number of the last parts of its path.
        loaded: the network, for its classes; without any, there is nothing for it to do.
        is_image: whether a file is worked on; others need no label.

    Raises:
        ConfigurationError: the file cannot be read, a class does not exist, or no image has a label.
    """
    labels = inputs.labels
    if labels is None or not loaded.num_classes:
        return sources
    if labels == FOLDERS:
        of_folder = _folders([*filter(is_image, sources)], loaded)
        return [replace(source, label=of_folder.get(_folder(source.path))) for source in sources]
    table = read_labels(labels, loaded.categories, loaded.num_classes)
    keys = [_key(source.path, table) for source in sources]
    found = [replace(one, label=table[key].label if key else None) for one, key in zip(sources, keys, strict=True)]
    missing = [source for source in found if source.label is None and is_image(source)]
    if missing and not any(keys):
        raise ConfigurationError(
            f"'{labels}' names none of the images, such as '{missing[0].name}': name files by the end of their paths"
        )
    if missing:
        images = "1 image has" if len(missing) == 1 else f"{len(missing)} images have"
        warnings.warn(f"{images} no label in '{labels}', such as '{missing[0].name}'", stacklevel=2)
    used = set(keys)
    unused = [key for key in table if key not in used] if inputs.shard is None and sources else []
    if unused:
        rows = "1 row" if len(unused) == 1 else f"{len(unused)} rows"
        where = f"'{Path(*unused[0])}' in line {table[unused[0]].line}"
        warnings.warn(f"{rows} of '{labels}' match{'es' * (len(unused) == 1)} no image, such as {where}", stacklevel=2)
    return found


def _key(path: Path, table: Labels) -> tuple[str, ...] | None:
    """The longest end of a path that the table has."""
    parts = path.parts
    return next((parts[start:] for start in range(len(parts)) if parts[start:] in table), None)


def _folder(path: Path) -> str:
    """The name of the directory that holds a file."""
    name = path.parent.name
    return name if name not in ("", "..") else path.parent.resolve().name


def _folders(sources: Sequence[Source], loaded: LoadedModel) -> dict[str, int]:
    """The class of each directory by its name; without class names, in sorted order, as torchvision's ImageFolder."""
    names = sorted({_folder(source.path) for source in sources})
    if loaded.categories is None and len(names) == loaded.num_classes and not all(name.isdecimal() for name in names):
        return {name: index for index, name in enumerate(names)}
    found = {}
    for name in names:
        spaced = name.replace("_", " ")
        try:
            found[name] = resolve_class(loaded.categories, spaced, loaded.num_classes)
        except ConfigurationError as error:
            reason = str(error).replace(repr(spaced), repr(name))
            raise ConfigurationError(f"the directory '{name}' is not named after a class ({reason})") from error
    return found
