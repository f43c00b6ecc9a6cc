"""Time of named parts of a pass, by CUDA events on a GPU and by the wall clock elsewhere."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

import torch

WARM_STEPS = 3  #: calls before a CUDA graph is captured or steps are timed


class Clock:
    """Spans of named parts; a part's time is the sum of its spans. Recording an event waits for nothing."""

    def __init__(self, device: str | torch.device):
        self.cuda = torch.device(device).type == "cuda"
        self.paused = False  #: events must not be recorded while a CUDA graph is captured
        self._spans: dict[str, list] = defaultdict(list)

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Add the time of the block to the part ``name``."""
        if self.paused:
            yield
            return
        start = self._now()
        yield
        self._spans[name].append((start, self._now()))

    def seconds(self) -> dict[str, float]:
        """Seconds per part since the last call; waits for the device."""
        if self.cuda:
            torch.cuda.synchronize()
        spans, self._spans = self._spans, defaultdict(list)
        return {name: sum(self._between(*pair) for pair in pairs) for name, pairs in spans.items()}

    def _now(self):
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, start, end) -> float:
        return start.elapsed_time(end) / 1e3 if self.cuda else end - start


def time_calls(call: Callable[[], object], device: str | torch.device, repeats: int, warm_up: int = 1) -> list[float]:
    """Seconds of each of ``repeats`` calls after ``warm_up`` untimed ones."""
    for _ in range(warm_up):
        call()
    found = []
    for _ in range(repeats):
        clock = Clock(device)
        with clock.span("call"):
            call()
        found.append(clock.seconds()["call"])
    return found


def median_seconds(call: Callable[[], object], device: str | torch.device, repeats: int, warm_up: int = 1) -> float:
    """Median seconds of a call."""
    return median(time_calls(call, device, repeats, warm_up))


def captured(call: Callable[[], object], device: str | torch.device) -> Callable[[], object]:
    """The call as a CUDA graph, after WARM_STEPS calls on a side stream; on a CPU the call itself."""
    if torch.device(device).type != "cuda":
        return call
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_STEPS):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay
