"""The lab models: small Qwen3.5- and Qwen3-class models trained from scratch on free text and the benchmark formats."""
