"""Latency, memory and rooflines at the papers' shapes (WG-KV §5.3, Appendices I and J.2).

:mod:`settings` says which jobs there are, :mod:`prefill` and :mod:`decode` time one, :mod:`kernels` times kernels,
:mod:`run` runs jobs in order of importance within a time budget, :mod:`summary` reads the rows.
"""
