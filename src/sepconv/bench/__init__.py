"""Measurements: workloads, models and baselines."""
