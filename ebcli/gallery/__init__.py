"""The gallery: the results of runs as one HTML page that opens from disk. Needs no torch."""
