"""Workloads, peers and ceilings, and the rows that a benchmark writes; the models and checks behind `sepconv try`."""
