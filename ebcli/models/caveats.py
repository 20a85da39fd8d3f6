"""What was measured on trained networks with known places; docs/tables.md has the tables."""

import re

# of the family with less than 90% of its maps in the half of the picture with the object, measured on one small network
_TRANSFORMER = re.compile(r"(^|[/_-])(vit|deit3?|beit(v2)?|dinov2|eva(02)?)([._-]|$)")


def caveat(name: str) -> str | None:
    """A sentence about the maps of a network, by its name, if they were less faithful than those of others."""
    if not _TRANSFORMER.search(name):
        return None
    return (
        f"{name}'s maps may be wrong in part: in a small vision transformer that was measured, 89% of a map was in "
        "the half of the picture with the object (see Measurements in the documentation)"
    )
