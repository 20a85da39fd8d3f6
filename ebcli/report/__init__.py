"""The gallery: a run's results as a page that opens from disk. Needs no torch."""

from ebcli.report.thumbnails import ThumbnailNames, thumbnails
from ebcli.report.write import PAGE, refuse_foreign_page, write_report

__all__ = ["PAGE", "ThumbnailNames", "refuse_foreign_page", "thumbnails", "write_report"]
