"""A whole run: baseline, sparse training, pruning, fine-tuning, and the models it saves."""
