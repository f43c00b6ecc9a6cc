"""HELMET: the fourteen tasks that WG-KV uses (Appendix D), from published files or as generated stand-ins.

Prompts, generation lengths and metrics are in ``tasks.yaml``. ``load`` reads the data sets, ``generate`` makes contexts
of their formats offline, ``score`` judges an answer.

What differs from the official scripts:

* Instruction, context and question are tokenised apart, as ``example.render`` does; a chat has no system message.
* Documents are cut by the model's own tokens, where the script cuts those of all models by the tokens of Llama 2.
* The demonstrations of NarrativeQA and Multi-LexSum are drawn from a hash of the question; the script draws them anew
  every time.
* Labels without numbers (files that hold names) are numbered by their alphabet.
* The places of an answer in its passages count as items of their own; intervals resample them together, and questions
  about one document, too.
* Answers that a judge model grades there (NarrativeQA and both summaries) are scored by ROUGE-L F1, which the script
  computes as well; no judge is run.
* Scores are also given for answers that end at a line break, which the published configuration means and does not do:
  see ``score``.
"""

from kvrepro.benchmarks.helmet.build import BENCHMARK, STAND_IN
from kvrepro.benchmarks.helmet.definitions import TASKS, judged, least
from kvrepro.benchmarks.helmet.generate import generate
from kvrepro.benchmarks.helmet.load import load
from kvrepro.benchmarks.helmet.score import STOPPED, score

__all__ = ["BENCHMARK", "STAND_IN", "STOPPED", "TASKS", "generate", "judged", "least", "load", "score"]
