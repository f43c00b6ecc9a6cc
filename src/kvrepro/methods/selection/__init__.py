"""Selection: which of the entries held a query reads (WG-KV §2.2; one file a method)."""

from kvrepro.methods.discovery import Family

FAMILY = Family(__name__, "Selection")
artifacts, build, find, names = FAMILY.artifacts, FAMILY.build, FAMILY.find, FAMILY.names
