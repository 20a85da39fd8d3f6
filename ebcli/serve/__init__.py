"""The live page: a local web server that explains photos while somebody asks."""
