"""Question answering over documents (qa_1 one hop, qa_2 two hops): golden documents among others."""

from __future__ import annotations

from collections.abc import Iterator

from kvrepro.benchmarks.ruler.definitions import SENTENCES, Task, wording
from kvrepro.benchmarks.ruler.problem import Problem, Request, growing
from kvrepro.errors import InputError


def documents(texts: list[str]) -> str:
    """Texts as numbered documents."""
    return "\n\n".join(SENTENCES["document"].format(number=i, text=text) for i, text in enumerate(texts, 1))


def build(task: Task, request: Request) -> Iterator[Problem]:
    """The problem of one item; its size is the number of documents besides the golden ones."""
    dataset, sources = task.options["dataset"], request.sources
    if dataset not in sources.quizzes:
        raise InputError(f"{task.name} needs questions: pass a {dataset} source to the RULER sources.")
    quiz = sources.quizzes[dataset].quiz(request.item, request.rng("question"), sources.split)
    others = growing(lambda: next(quiz.others))

    def context(n: int) -> str:
        texts = [*quiz.golden, *others(n)]
        request.rng("order").shuffle(texts)
        return documents(texts)

    yield Problem(
        wording=wording(task, query=quiz.question),
        references=quiz.references,
        context=context,
        smallest=0,
        details=lambda n: {"documents": n + len(quiz.golden), "golden_documents": len(quiz.golden)},
    )
