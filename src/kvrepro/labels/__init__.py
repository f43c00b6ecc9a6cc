"""Labels: the future utility of every KV entry over the model's own continuations (GateSight §2, Appendix B)."""
