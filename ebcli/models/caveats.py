"""What was measured on trained networks with known places; docs/evidence.md has the tables."""

import re

ENOUGH = 0.9  # of the map on the right object

# families of which less than that is, and how much; the networks of a family are found by their names
_BELOW: tuple[tuple[re.Pattern[str], str, float], ...] = (
    (re.compile(r"(^|[/_-])(vit|deit3?|beit(v2)?|dinov2|eva(02)?)([._-]|$)"), "vision transformers", 0.89),
)


def caveat(name: str) -> str | None:
    """A sentence about the maps of a network, by its name, if they were less faithful than those of others."""
    for pattern, family, share in _BELOW:
        if pattern.search(name):
            return (
                f"{name}'s maps may be wrong in part: on trained {family}, {share:.2f} of a map was on the right "
                "object (see Evidence in the documentation)"
            )
    return None
