"""Every benchmark by name, and what each one provides; nothing else in the suite knows a benchmark's name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from kvrepro.benchmarks.example import Example, Question
from kvrepro.errors import unknown

#: Packages beside this module, each with a module ``benchmark`` that defines BENCHMARK.
BENCHMARKS = ("ruler", "scbench", "helmet", "longproc", "reasoning")

#: ``score(example, question, text)``: the score of an answer, from 0 to 1, or several by the name of their metric, of
#: which "score" is the one that figures and tables show.
Scorer = Callable[[Example, Question, str], float | Mapping[str, float]]


@dataclass(frozen=True)
class Benchmark:
    """A benchmark; ``settings`` are those of its key under ``benchmarks`` in the config.

    * ``generate(settings, tokenizer, seed, chat, lab)`` yields the examples of each of the settings' tasks, in their
      order; ``lab`` says that the model is a lab model, which was trained on the benchmark's formats.
    * ``score`` judges an answer.
    * ``check(settings)`` raises InputError, which names the key, for what the schema of the config cannot say.
    * ``shortest(settings)`` is the least number of tokens that a context has, for kept fractions to be checked with.
    * ``answers(settings)`` is how many tokens the answer to a context may have at least, where that matters: a window
      may then be longer than the context.
    * ``reads(settings)`` names what the examples are made of: files or folders of the user (Path), or corpora as the
      config names them. They must be there, and a change of their content makes the examples anew.
    """

    tasks: tuple[str, ...]
    generate: Callable[[Mapping[str, Any], Any, int, bool, bool], Iterator[Sequence[Example]]]
    score: Scorer
    check: Callable[[Mapping[str, Any]], None]
    shortest: Callable[[Mapping[str, Any]], int]
    reads: Callable[[Mapping[str, Any]], dict[str, Path | str]]
    answers: Callable[[Mapping[str, Any]], int] = lambda settings: 0


def benchmark(name: str, where: str = "benchmark") -> Benchmark:
    """A benchmark by name; InputError names the key ``where`` and the nearest match."""
    if name not in BENCHMARKS:
        raise unknown("benchmark", name, BENCHMARKS, where)
    return import_module(f"{__package__}.{name}.benchmark").BENCHMARK
