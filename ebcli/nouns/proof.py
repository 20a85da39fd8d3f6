"""Proofs of maps: how small a part of an image keeps its score."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Proof:
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
    def holds(self) -> bool:
        """Whether the map finds a smaller part than chance does, and blur alone does not keep the score."""
        return self.part < min(1.0, self.shuffled) and not self._blur_keeps

    @property
    def _blur_keeps(self) -> bool:
        return self.blurred >= self.score / 2

    @property
    def words(self) -> str:
        """The proof in words, or why there is none."""
        score, without, blurred = map(_shown, (self.score, self.without, self.blurred))
        if self._blur_keeps:
            return f"not proved: the score is still {blurred} of {score} if all of the image is blurred"
        if self.part == 1:
            return f"not proved: no part of the image keeps half of the score {score}"
        change = f"falls from {score} to {without}" if self.without < self.score else f"is {without} instead of {score}"
        if not self.holds:
            return (
                f"not proved: {self.part:.2f} of the image is needed; in random order {self.shuffled:.2f} suffices; "
                f"without the former the score {change}"
            )
        return (
            f"{self.part:.2f} of the image suffices; in random order {self.shuffled:.2f} would be needed; "
            f"without it the score {change}"
        )

    @property
    def recorded(self) -> dict[str, Any]:
        """The proof as records have it."""
        return {**asdict(self), "holds": self.holds, "words": self.words}


def _shown(score: float) -> str:
    return f"{score:.2f}" if score >= 0.01 or not score else f"{score:.1g}"
