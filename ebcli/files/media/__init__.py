"""Kinds of data, each in a file of its own, which registers it. Imports no torch."""

from ebcli.files.media import frames, photo  # noqa: F401 - they register themselves
