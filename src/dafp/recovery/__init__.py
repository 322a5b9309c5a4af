"""Recovering accuracy after pruning, and finding out which layers need their channels."""
