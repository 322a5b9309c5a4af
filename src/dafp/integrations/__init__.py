"""Sparse training inside other people's trainers: one file for each, imported only by its users."""
