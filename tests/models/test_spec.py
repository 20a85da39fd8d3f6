"""The specification of a model checks itself, without torch."""

from pathlib import Path

import pytest

from ebcli.errors import ConfigurationError
from ebcli.models import ModelSpec


def test_a_file_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"the file of class names 'nowhere\.txt' does not exist"):
        ModelSpec(class_names=Path("nowhere.txt"))
