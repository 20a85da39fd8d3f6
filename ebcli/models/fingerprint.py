"""Hashes that identify a network and its settings. Imports no torch."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from ebcli.errors import ConfigurationError
from ebcli.imports import installed_version
from ebcli.models.keywords import SOFTMAX
from ebcli.models.loaded import LoadedModel


def configuration_hash(settings: Mapping[str, object]) -> str:
    """Hash settings; equal settings give equal hashes, in any order."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]


def network_settings(loaded: LoadedModel) -> dict[str, object]:
    """Everything about this program and the network that results depend on, for ``configuration_hash``.

    Checkpoints and model files count by their content, not their path.
    """
    scores = {} if loaded.scores == SOFTMAX else {"scores": loaded.scores}
    return {
        "version": installed_version().split(".")[:2],  # patch releases compute the same
        "model": loaded.name,
        "weights": None if Path(loaded.weights) in loaded.files else loaded.weights,
        "files": [content_hash(file) for file in loaded.files],
        "preprocessing": repr(loaded.transforms),
        "categories": loaded.categories,
        **scores,
    }


def content_hash(path: Path) -> str:
    """SHA-256 of a file. Raises ConfigurationError if it cannot be read."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError as error:
        raise ConfigurationError(f"cannot read '{path}': {error.strerror}") from error
    return digest.hexdigest()
