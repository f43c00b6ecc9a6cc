"""LongProc's task HTML to TSV (WG-KV Appendix H) at its three output lengths, from published pages or as stand-ins.

The prompt and generation lengths are in ``tasks.yaml``. ``load`` reads the published files, ``generate`` makes pages of
their form offline, ``score`` compares the rows of an answer with those of the reference.

What differs from the official scripts:

* Instruction, page and question are tokenised apart, as ``example.render`` does; a chat has no system message.
* A page that is too long loses its end, as in HELMET's runs of LongProc.
"""

from kvrepro.benchmarks.longproc.definitions import TASKS
from kvrepro.benchmarks.longproc.generate import generate
from kvrepro.benchmarks.longproc.load import load
from kvrepro.benchmarks.longproc.pages import BENCHMARK, STAND_IN
from kvrepro.benchmarks.longproc.score import score

__all__ = ["BENCHMARK", "STAND_IN", "TASKS", "generate", "load", "score"]
