"""kvrepro: one workflow that rebuilds two KV-cache papers, WG-KV and GateSight, and says claim by claim what holds."""

__version__ = "0.1.0"
