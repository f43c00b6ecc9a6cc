"""Bounding: eviction while a cache grows, so that a hard budget holds (WG-KV Appendix K; one file a method)."""

from kvrepro.methods.discovery import Family

FAMILY = Family(__name__, "Bounding")
artifacts, build, find, names = FAMILY.artifacts, FAMILY.build, FAMILY.find, FAMILY.names
