"""Sufficiency of maps: how small a part of an image keeps its score."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Sufficiency:
    """How small a part of an image keeps half of a score while the rest is blurred.

    Attributes:
        part: the smallest share of the image, 0 to 1, if its pixels are kept in the order of the map; 1 if no smaller
            part keeps half of the score.
        shuffled, center, gradient: likewise in the order of the map with its cells shuffled, of a blob at the center,
            and of the gradient at the pixels.
        score: the score of the whole image.
        without: the score if ``part`` is blurred.
        blurred: the score if all of the image is blurred.
    """

    part: float
    shuffled: float
    center: float
    gradient: float
    score: float
    without: float
    blurred: float

    @property
    def suffices(self) -> bool:
        """Whether the map finds a smaller part than random order and the center do, and blur alone loses the score."""
        return self.part < min(1.0, self.shuffled, self.center) and not self._blur_keeps

    @property
    def _blur_keeps(self) -> bool:
        return self.blurred >= self.score / 2

    @property
    def words(self) -> str:
        """The result in words."""
        score, without, blurred = map(_shown, (self.score, self.without, self.blurred))
        if self._blur_keeps:
            return f"sufficiency not shown: the score is still {blurred} of {score} if all of the image is blurred"
        if self.part == 1:
            return f"sufficiency not shown: no part of the image keeps half of the score {score}"
        others = f"a blob at the center needs {self.center:.0%}, random order {self.shuffled:.0%}"
        if not self.suffices:
            return f"sufficiency not shown: the map needs {self.part:.0%} of the image; {others}"
        change = f"falls from {score} to {without}" if self.without < self.score else f"is {without} instead of {score}"
        return f"{self.part:.0%} of the image suffices; {others}; without that part, the score {change}"

    @property
    def recorded(self) -> dict[str, Any]:
        """The result as records have it."""
        return {**asdict(self), "suffices": self.suffices, "words": self.words}


def _shown(score: float) -> str:
    return f"{score:.2f}" if score >= 0.01 or not score else f"{score:.1g}"
