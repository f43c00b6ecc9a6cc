"""SCBench: twelve tasks of one context and several questions, from published files or as generated stand-ins.

Templates, generation lengths and metrics are in ``tasks.yaml``. ``load`` reads the data set, ``generate`` makes
contexts of its format offline, ``score`` judges an answer.

What differs from the official scripts:

* Only instruction and context are prefilled and compressed; in multi-turn mode the history belongs to the question, and
  the cache of the context is restored before each. The script goes on with one cache (its answers are the same where
  nothing is evicted).
* Instruction, context and question are tokenised apart, as ``example.render`` does.
* A context is cut as text, on the borders of the tokens that the script keeps: see ``truncate``. A turn whose history
  is longer than the script reserves is given the room it needs.
* jieba, which the official requirements name, is used by no scorer of these tasks.
* In a chat, an earlier answer follows the generation prompt it would have had, an empty thought included where the
  template writes one.
"""

from kvrepro.benchmarks.scbench.definitions import MODES, MULTI_REQUEST, MULTI_TURN, TASKS
from kvrepro.benchmarks.scbench.generate import generate
from kvrepro.benchmarks.scbench.load import load
from kvrepro.benchmarks.scbench.score import SCORERS, score
from kvrepro.benchmarks.scbench.stand_ins.sources import Sources, from_corpora
from kvrepro.benchmarks.scbench.turns import BENCHMARK, STAND_IN

__all__ = [
    "BENCHMARK",
    "MODES",
    "MULTI_REQUEST",
    "MULTI_TURN",
    "SCORERS",
    "STAND_IN",
    "TASKS",
    "Sources",
    "from_corpora",
    "generate",
    "load",
    "score",
]
