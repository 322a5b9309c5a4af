"""One training stage: configuration, loop, devices, and the directory of a run."""
