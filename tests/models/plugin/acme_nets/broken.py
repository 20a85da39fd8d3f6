"""What a package looks like whose own requirements are not met."""

import a_package_that_is_not_there  # noqa: F401
