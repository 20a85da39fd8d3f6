"""Networks by name: architecture, weights, classes and layers.

Everything is imported on first use: listing the names and resolving a class need no torch.
"""

from ebcli.imports import lazily

__getattr__, __dir__ = lazily(__name__)
