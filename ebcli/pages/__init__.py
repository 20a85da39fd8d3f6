"""Pages: templates in one shell, with their style and scripts inside. Each opens without anything beside it."""
