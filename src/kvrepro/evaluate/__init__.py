"""The evaluation protocol: prefill once, fork, answer, check, one row an answer."""
