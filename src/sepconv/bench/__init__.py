"""Measurements: sepconv beside what users have today, each result checked first, each time beside its floor."""
