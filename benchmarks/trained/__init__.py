"""Saliency maps of small networks of every family, trained on made pictures whose objects have known places."""
