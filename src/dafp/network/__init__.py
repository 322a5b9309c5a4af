"""Reading, running and copying the networks of others: tensors by name, skeletons, cost."""
