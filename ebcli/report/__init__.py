"""The gallery: a run's results as a page that opens from disk. Needs no torch."""

from ebcli.report.thumbnails import ThumbnailNames, thumbnails
from ebcli.report.write import write_report

__all__ = ["ThumbnailNames", "thumbnails", "write_report"]
