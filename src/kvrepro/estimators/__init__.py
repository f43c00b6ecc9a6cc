"""Utility estimators: features of the native GDN signals and the small networks that read them (GateSight §4.1)."""
