"""RULER: 13 synthetic long-context tasks with the official definitions, any length, any tokenizer.

Definitions and quoted texts are in ``templates.yaml``. ``generate`` makes items, ``score`` judges an answer,
``sources`` says where text comes from, ``draws`` which strings belong to evaluation.

What differs from the official scripts:

* Draws are seeded per item, and keys, values and names of an item are distinct. The scripts seed once a run and order
  needles, list words and documents of all items by one permutation.
* Each item holds the most haystack that fits. The scripts find one size a task, take steps of 5 to 500 units off where
  an item is too long, and never end where nothing fits; here vt and cwe then take a reduced form
  (``info["published_form"]`` is False), the same for all items, and everything else is an InputError.
* The length counts tokens of instruction, context and question tokenised apart, as ``example.render`` does.
* Strings are limited to a split where ``Sources.split`` is set. cwe goes on with other words when its list runs out;
  the scripts then take all words of the item from english_words.json.
* Essays are cut into sentences by punctuation, not by NLTK's model. Offline, each item starts at another sentence.
* HotpotQA's supporting paragraphs are kept when its ten do not fit.
"""

from kvrepro.benchmarks.ruler.definitions import TASKS
from kvrepro.benchmarks.ruler.generate import generate
from kvrepro.benchmarks.ruler.score import score
from kvrepro.benchmarks.ruler.sources import Sources, from_settings, offline, sentences, with_files

__all__ = [
    "TASKS",
    "Sources",
    "from_settings",
    "generate",
    "offline",
    "score",
    "sentences",
    "with_files",
]
