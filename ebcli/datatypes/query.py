"""What is asked about a photo, and where the answer comes from."""

from typing import NamedTuple


class Query(NamedTuple):
    """A question about a photo to a vision-language model.

    Attributes:
        question: the question; if it is empty, that for a description.
        answer: the answer to explain; None for the network's own.
    """

    question: str = ""
    answer: str | None = None
