"""What a run is about: an input, subjects in it, and their maps. They import nothing but errors."""
