"""What was measured on trained networks with known places; docs/tables.md has the tables."""

import re

ENOUGH = 0.9  # of the map on the right object

# families with less, measured on one small network each; the networks of a family are found by their names
_BELOW: tuple[tuple[re.Pattern[str], str, float], ...] = (
    (re.compile(r"(^|[/_-])(vit|deit3?|beit(v2)?|dinov2|eva(02)?)([._-]|$)"), "vision transformer", 0.89),
)


def caveat(name: str) -> str | None:
    """A sentence about the maps of a network, by its name, if they were less faithful than those of others."""
    for pattern, family, share in _BELOW:
        if pattern.search(name):
            return (
                f"{name}'s maps may be wrong in part: in a small {family} that was measured, {share:.0%} of a map was "
                "on the right object (see Measurements in the documentation)"
            )
    return None
