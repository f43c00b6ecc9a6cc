"""Training: utility estimators and the lab models."""
