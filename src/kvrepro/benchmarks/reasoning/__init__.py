"""Reasoning whose trace is several times as long as a bounded cache (WG-KV §5.4, Appendix K).

* ``registers``, generated: a small program is run round after round and every step is written down. A step reads the
  program in the prompt and, of the trace, the values that were written last; what they replaced is of no more use. The
  prompt is short and the trace as long as the settings want, so a cache that forgets the program or a value that is
  still current goes wrong from there on.
* ``aime25``: the problems of AIME 2025, from the user's file. One answer a problem is sampled at temperature 0.6, as
  WG-KV's authors do, from draws that the seed and the item give and that are the same for all methods.

Definitions and wording are in ``tasks.yaml``, answers are judged by ``score``.
"""

from kvrepro.benchmarks.reasoning.definitions import TASKS

__all__ = ["TASKS"]
