"""The tasks of networks, each in a file of its own, which registers it."""

from ebcli.run.tasks import classes, detections, segments, values, words  # noqa: F401 - they register their tasks
