"""Methods: what computes the maps of a network for given classes at given layers, by name."""
