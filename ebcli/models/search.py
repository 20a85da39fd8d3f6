"""The models that ``eb-saliency models`` lists: those of the installed packages, and of the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatch

from ebcli.errors import ConfigurationError
from ebcli.imports import import_optional
from ebcli.models.keywords import TASKS
from ebcli.models.names import model_names

_MOST, _TIMEOUT = 20, 10  # models of the hub for a task, seconds
_HUB = {"image-classification": "hf", "zero-shot-image-classification": "clip"}  # prefixes of names, by the hub's task


def matching(pattern: str) -> Iterator[tuple[str, Sequence[str] | None]]:
    """Headings, each with the names of models that contain a text or match a pattern such as ``resnet*``.

    Names are None where there is no search, which the heading says. Without a pattern, timm and the hub are left out:
    they have too many.
    """
    wanted = pattern.lower() if set(pattern) & set("*?[") else f"*{pattern.lower()}*"
    for task in TASKS:
        yield f"{task.capitalize()}:", [name for name in model_names(task) if fnmatch(name.lower(), wanted)]
    if not pattern:
        return
    for heading, find in (("timm:", _of_timm), ("The Hugging Face hub:", _of_hub)):
        try:
            yield heading, find(wanted)
        except ConfigurationError as error:
            yield f"{heading[:-1]} is not searched: {error}", None


def _of_timm(wanted: str) -> list[str]:
    return [f"timm/{name}" for name in import_optional("timm").list_models(wanted)]


def _of_hub(wanted: str) -> list[str]:
    constants, utils = (import_optional(f"huggingface_hub.{name}") for name in ("constants", "utils"))
    found: list[str] = []
    query = {"search": wanted.replace("*", " ").strip(), "filter": "transformers", "sort": "downloads", "limit": _MOST}
    try:
        for task, prefix in _HUB.items():  # list_models() would retry for half a minute where there is no network
            url, query["pipeline_tag"] = f"{constants.ENDPOINT}/api/models", task
            answer = utils.get_session().get(url, params=query, timeout=_TIMEOUT)
            answer.raise_for_status()
            found += [f"{prefix}/{model['id']}" for model in answer.json()]
    except Exception as error:  # sockets, HTTP, settings: every release raises other types
        raise ConfigurationError(f"it cannot be reached ({' '.join(str(error).split())})") from error
    return found
