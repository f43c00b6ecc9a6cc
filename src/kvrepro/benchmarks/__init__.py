"""Benchmarks: examples (prompt parts, questions, references) and their scorers, one package a benchmark, listed in
:mod:`kvrepro.benchmarks.registry`."""
