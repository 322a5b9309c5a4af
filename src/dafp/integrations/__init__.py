"""Sparse training as a callback of other trainers: one file per trainer, imported on demand."""
