"""Admission: which entries are written beyond the local window (WG-KV §2.2, §3; one file a method)."""

from kvrepro.methods.discovery import Family

FAMILY = Family(__name__, "Admission")
artifacts, build, find, names = FAMILY.artifacts, FAMILY.build, FAMILY.find, FAMILY.names
