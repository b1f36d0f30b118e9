"""Compiles kernels for the machine and the shape at hand, and keeps the results on disk."""
