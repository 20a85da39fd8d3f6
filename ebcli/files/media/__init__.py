"""Kinds of data, each in a file of its own, which registers it. Imports no torch."""

# They register themselves whenever one of them is imported. A named file that is of no kind is read by the first one
# that the network takes.
from ebcli.files.media import photo, frames, array, tiff, nifti, dicom  # noqa: F401, I001
