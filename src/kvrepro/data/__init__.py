"""Text corpora of the repository, and the language models and loaders that read them."""
