"""A module that ends the program that imports it."""

import sys

print("goodbye")
sys.exit(0)
