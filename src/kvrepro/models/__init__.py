"""Models: what is in the registry, how it is loaded, its geometry, and what one prefill shows of it."""
