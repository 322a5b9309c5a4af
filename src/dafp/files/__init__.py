"""Files: saved models and checkpoints."""
