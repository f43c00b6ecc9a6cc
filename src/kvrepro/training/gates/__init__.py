"""Training of write gates (WG-KV §3, Appendix C) and of DuoAttention's head profile (Appendix E)."""
