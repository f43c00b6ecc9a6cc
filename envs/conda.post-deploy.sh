#!/usr/bin/env bash
# Runs in the root of the repository when Snakemake has made the environment.
set -euo pipefail
stack=cpu extras=dev
if command -v nvidia-smi > /dev/null; then stack=cuda extras=dev,gpu; fi
uv pip install --python "$CONDA_PREFIX/bin/python" -c "envs/$stack.txt" -e ".[$extras]"
