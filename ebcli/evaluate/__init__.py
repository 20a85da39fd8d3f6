"""Measuring the faithfulness of saliency maps: metrics, and the tests behind ``eb-saliency benchmark``.

The metrics accept maps of any method:

    from ebcli.evaluate import pointing_hit, resized
    pointing_hit(resized(saliency, (width, height)), mask)      # 1.0 if the maximum lies on the object

Everything is imported on first use.
"""

from ebcli.imports import lazily

__getattr__, __dir__ = lazily(__name__)
