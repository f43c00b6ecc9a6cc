"""Eviction: which entries of a finished prefill to keep (GateSight §4; one file a method)."""

from kvrepro.methods.discovery import Family

FAMILY = Family(__name__, "Eviction")
artifacts, build, find, names = FAMILY.artifacts, FAMILY.build, FAMILY.find, FAMILY.names
