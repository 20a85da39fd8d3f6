"""Kinds of data, in files that register them. Imports no torch."""

# They register themselves whenever one of them is imported. A named file that is of no kind is read by the first one
# that the network takes.
from ebcli.files.media import medium, film, video, array, medical  # noqa: F401, I001
