"""Analyses of labelled corpora: memory dynamics of the GDN heads, predictors of utility (GateSight §3, Appendix C)."""
