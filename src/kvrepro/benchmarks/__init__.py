"""Benchmarks: examples (prompt parts, questions, references) and their scorers."""
