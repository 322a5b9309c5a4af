"""Inspecting, running and copying any network: tensors by name, skeletons, cost."""
