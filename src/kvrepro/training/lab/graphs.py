"""CUDA graphs of functions with fixed shapes: captured once a shape, then replayed."""

from __future__ import annotations

from collections.abc import Callable

import torch


class GraphPool:
    """Calls ``f(*tensors)`` through a CUDA graph a (name, shape); a plain call where ``enabled`` is false.

    The first ``eager_calls`` calls of a name run without a graph, so that compilation has happened. Results are copied
    out of the graph's memory, which all graphs share.
    """

    def __init__(self, enabled: bool, eager_calls: int):
        self.enabled, self.eager_calls = enabled, eager_calls
        self._graphs: dict = {}
        self._calls: dict[str, int] = {}
        self._pool = None

    def __call__(self, name: str, f: Callable, *args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The outputs of ``f``, detached."""
        calls = self._calls[name] = self._calls.get(name, 0) + 1
        if not self.enabled or calls <= self.eager_calls:
            return tuple(t.detach() for t in f(*args))
        key = (name, *(a.shape for a in args))
        if key not in self._graphs:
            self._graphs[key] = self._capture(f, args)
        graph, inputs, outputs = self._graphs[key]
        for held, given in zip(inputs, args, strict=True):
            held.copy_(given)
        graph.replay()
        return tuple(t.clone() for t in outputs)

    def _capture(self, f: Callable, args: tuple[torch.Tensor, ...]):
        inputs = [a.clone() for a in args]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                f(*inputs)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            outputs = tuple(t.detach() for t in f(*inputs))
        self._pool = self._pool or graph.pool()
        return graph, inputs, outputs
