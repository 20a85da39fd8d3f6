"""The errors a user can meet. Each message is one sentence that names the thing and says what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class EbcliError(Exception):
    """Base of everything this package raises on purpose."""


class ConfigurationError(EbcliError):
    """The request cannot be carried out as it stands: a wrong model, layer, class, weights or option."""


class LayerError(ConfigurationError):
    """The layer does not exist, is called more or less than once, or has no map to give."""


class UnsupportedOpError(EbcliError):
    """Operations on the signal's path have no excitation rule; the message names every one of them."""


class RuleError(EbcliError):
    """An excitation rule disagrees with the definition; the message tells where and by how much."""


class ImageError(EbcliError):
    """One image cannot be read; the run goes on without it."""


class WorkerError(EbcliError):
    """The process that worked on an image died, twice; the run goes on without that image."""


class OutputError(EbcliError):
    """A result cannot be written, so nothing further can be either."""


def closest(name: str, valid: Iterable[str], count: int = 3) -> str:
    """A hint such as ``did you mean 'vgg16', 'vgg19' or 'vgg11'?``, or ``""`` where nothing comes near."""
    by_folded = {candidate.casefold(): candidate for candidate in valid}
    near = [by_folded[m] for m in difflib.get_close_matches(name.casefold(), by_folded, n=count, cutoff=0.4)]
    if not near:
        return ""
    quoted = [repr(candidate) for candidate in near]
    return "did you mean " + (" or ".join([", ".join(quoted[:-1]), quoted[-1]] if quoted[1:] else quoted)) + "?"
