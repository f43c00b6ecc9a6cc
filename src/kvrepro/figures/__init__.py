"""Figures of the papers, one function each, from tidy rows alone."""
