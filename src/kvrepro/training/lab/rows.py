"""Training rows: RULER-format samples with several questions a context, register programs with their trace, a key-value
helper, and plain text.

A sample is a list of pieces that are tokenised one by one, exactly as ``kvrepro.benchmarks.example.render`` does:
instruction, context, then question (with answer prefix) and answer in turn. An answer ends with ``<|endoftext|>``; the
next question of the same context, or the next sample of the row, follows. Evaluation has one question a context;
training has several, because that is what makes retrieval appear.

Every token has a weight code: ``SKIP`` (haystack prose, no loss), ``TEXT`` (text loss) or ``ANSWER`` (both losses).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from scipy.special import zeta
from tokenizers import Tokenizer

from kvrepro.benchmarks.reasoning import registers
from kvrepro.benchmarks.reasoning.definitions import REGISTERS
from kvrepro.benchmarks.ruler import draws, facts
from kvrepro.benchmarks.ruler.definitions import SENTENCES, Wording, task, wording
from kvrepro.benchmarks.ruler.draws import TRAIN
from kvrepro.benchmarks.ruler.problem import scatter
from kvrepro.training.lab.config import Stage
from kvrepro.training.lab.texts import Texts, read_texts

SKIP, TEXT, ANSWER = 0, 1, 2
EOS = 0  # id of <|endoftext|>
SMALLEST = 110  # tokens; shorter gaps of a row are filled with plain text
FULL_SHARE = 0.75  # of the samples are as long as the room that is left
MOST_QUESTIONS = 24
MOST_REGISTERS = 8
FWE_ALPHA = (1.7, 2.2)  # Zipf exponents of fwe; 2.0 at evaluation

Segment = tuple[str, int]  # text and its weight code
Piece = list[Segment]  # tokenised together


@dataclass(frozen=True)
class Asked:
    """One question with its answer as the model is to write it."""

    question: str
    answer: Piece


def text(string: str) -> Piece:
    """A piece of ordinary text."""
    return [(string, TEXT)]


def answer(string: str) -> Piece:
    """A piece that is an answer."""
    return [(string, ANSWER)]


def joined(segments: Sequence[Segment], separator: str) -> Piece:
    """Segments with a separator between them; the separator counts to the segment that follows it."""
    return [(separator * (i > 0) + string, code) for i, (string, code) in enumerate(segments)]


class RowMaker:
    """Makes rows from tokenised texts; every method draws from the ``random.Random`` it is given."""

    def __init__(self, tokenizer: Tokenizer, texts: Texts, list_word_tokens: int = 0):
        self.tokenizer, self.texts = tokenizer, texts
        self.counts: dict[str, int] = {}
        self.list_words = draws.of_length(texts.list_words, list_word_tokens, lambda s: len(self.ids(s)))
        self.makers: dict[str, Callable] = {
            "niah": self.niah,
            "vt": self.vt,
            "cwe": self.cwe,
            "fwe": self.fwe,
            "qa": self.qa,
            registers.TASK: self.registers,
        }

    @classmethod
    def load(cls, data: Path, list_word_tokens: int = 0) -> RowMaker:
        """From the folder that ``prepare`` made."""
        return cls(Tokenizer.from_file(str(Path(data) / "tokenizer.json")), read_texts(Path(data)), list_word_tokens)

    # --- tokens ------------------------------------------------------------------------------------------------------

    def ids(self, string: str) -> list[int]:
        """Token ids of one piece."""
        return self.tokenizer.encode(string, add_special_tokens=False).ids

    def count(self, string: str) -> int:
        """Number of tokens of a string that is used again and again (remembered)."""
        if string not in self.counts:
            if len(self.counts) > 100_000:
                self.counts.clear()
            self.counts[string] = len(self.ids(string))
        return self.counts[string]

    def encode(self, pieces: Sequence[Piece]) -> tuple[list[int], list[int]]:
        """Ids and weight codes of the pieces of a sample, ``<|endoftext|>`` after every answer."""
        ids: list[int] = []
        codes: list[int] = []
        for piece in pieces:
            encoding = self.tokenizer.encode("".join(s for s, _ in piece), add_special_tokens=False)
            ids += encoding.ids
            kinds = [code for _, code in piece]
            if len(set(kinds)) == 1:
                codes += [kinds[0]] * len(encoding.ids)
            else:
                ends = np.cumsum([len(s) for s, _ in piece])
                starts = np.fromiter((a for a, _ in encoding.offsets), np.int64, len(encoding.ids))
                codes += np.array(kinds)[np.searchsorted(ends, starts, side="right")].tolist()
            if kinds[-1] == ANSWER:
                ids.append(EOS)
                codes.append(ANSWER)
        return ids, codes

    # --- rows --------------------------------------------------------------------------------------------------------

    def row(self, rng: random.Random, size: int, stage: Stage) -> tuple[list[int], list[int]]:
        """``size`` ids and weight codes: plain text, or samples one after the other without masks between them."""
        if rng.random() < stage.plain:
            return self.plain(rng, size), [TEXT] * size
        ids: list[int] = []
        codes: list[int] = []
        names = list(stage.tasks)
        weights = list(stage.tasks.values())
        while len(ids) < size:
            room = size - len(ids)
            if room >= SMALLEST:
                length = room if rng.random() < FULL_SHARE else rng.randint(SMALLEST, room)
                length = min(length, stage.longest_sample or length)
                helper = rng.random() < stage.helper
                sample = None if helper else self.sample(rng, rng.choices(names, weights)[0], length)
                more, kinds = self.encode(sample or self.key_values(rng, length))
                if len(more) <= room:
                    ids += more
                    codes += kinds
                    continue
            fill = self.plain(rng, min(room, SMALLEST))
            ids += fill
            codes += [TEXT] * len(fill)
        return ids, codes

    def sample(self, rng: random.Random, name: str, length: int) -> list[Piece] | None:
        """Pieces of one sample of a benchmark task in at most about ``length`` tokens; None when it does not fit."""
        return self.makers[name if name == registers.TASK else task(name).family](rng, name, length)

    def plain(self, rng: random.Random, size: int) -> list[int]:
        """A stretch of training text, documents separated by ``<|endoftext|>``."""
        corpus = rng.choices(list(self.texts.streams), self.texts.shares)[0]
        stream = self.texts.streams[corpus]
        begin = rng.randrange(len(stream) - size)
        return stream[begin : begin + size].tolist()

    def pieces(self, words: Wording, context: Piece, asked: Sequence[Asked], head: str = "") -> list[Piece]:
        """Instruction, context, and the questions and answers in turn."""
        out = [text(head + words.instruction), [(words.lead, TEXT), *context] if words.lead else context]
        for one in asked:
            out += [text(one.question), one.answer]
        return out

    def cost(self, *pieces: Piece) -> int:
        """Tokens of pieces that were just drawn."""
        return sum(len(self.ids("".join(s for s, _ in piece))) for piece in pieces)

    # --- helper ------------------------------------------------------------------------------------------------------

    def key_values(self, rng: random.Random, length: int) -> list[Piece]:
        """A list "key: value", then the same list in another order with the values as answers."""
        kind = rng.choice(["numbers", "numbers", "words", "uuids"])
        keys = "words" if kind == "words" else rng.choice(["words", "words", "uuids"])
        entries, used, taken = [], 8, set()
        while True:
            key, value = self.string(rng, keys, taken), self.string(rng, kind, taken)
            used += 2 * (self.cost(text(f"\n{key}: {value}")) + 1)
            if used > length and entries:
                break
            entries.append((key, value))
        out = [text("Entries:" + "".join(f"\n{key}: {value}" for key, value in entries)), text("\nAgain:")]
        for key, value in rng.sample(entries, len(entries)):
            out += [text(f"\n{key}:"), answer(f" {value}")]
        return out

    def string(self, rng: random.Random, kind: str, taken: set[str]) -> str:
        """A key or value of the training split."""
        if kind == "numbers":
            return draws.number(rng, TRAIN, taken)
        if kind == "uuids":
            return draws.uuid4(rng, TRAIN, taken)
        return draws.word_pair(rng, TRAIN, self.texts.words, self.texts.words, taken)

    # --- needles -----------------------------------------------------------------------------------------------------

    def niah(self, rng: random.Random, name: str, length: int) -> list[Piece] | None:
        """One of the eight needle tasks with more needles and questions than at evaluation."""
        definition, options = task(name), task(name).options
        values, queries = options["values"], options["queries"]
        if length < 400:  # smaller groups where four do not fit
            values, queries = (rng.randint(2, n) if n > 1 else 1 for n in (values, queries))
        needles_only = options["haystack"] == "needle"
        wanted = {"niah_multikey_1": (3, 8), "niah_multivalue": (1, 4), "niah_multiquery": (4, 12)}.get(name, (1, 5))
        wanted = 10_000 if needles_only else max(rng.randint(*wanted), queries)
        taken: set[str] = set()
        separator = " " if options["haystack"] == "essay" else "\n"

        def words(keys: Sequence[str]) -> Wording:
            query = keys[0]
            if len(keys) > 1:
                listing = SENTENCES["query"]
                query = listing["separator"].join(keys[:-1]) + listing["last_separator"] + keys[-1]
            return wording(definition, values * queries, type_needle_v=options["value"], query=query)

        def needle(key: str, value: str) -> str:
            return SENTENCES["needle"].format(type_needle_v=options["value"], key=key, value=value)

        probe = words(["x"] * queries)
        budget = length - self.count(probe.instruction) - 2
        ask = self.count(probe.question + probe.answer_prefix)
        share = rng.uniform(0.45, 0.92) if needles_only else 0.6  # of the budget for needles
        items: dict[str, list[str]] = {}
        needles: list[tuple[str, str]] = []
        used = cost = 0
        while len(items) < wanted:
            key = self.string(rng, options["key"], taken)
            own = [(key, self.string(rng, options["value"], taken)) for _ in range(values)]
            cost = self.cost(*(text(separator + needle(*n)) for n in own))
            if used + cost > budget * share:
                break
            items[key] = [value for _, value in own]
            needles += own
            used += cost
        if len(items) < queries:
            return None
        rng.shuffle(needles)
        order: dict[str, list[str]] = {key: [v for k, v in needles if k == key] for key in items}  # as in the text
        keys = rng.sample(list(items), len(items))
        asked: list[Asked] = []
        for i in range(0, len(keys) - queries + 1, queries):
            group = keys[i : i + queries]
            filled = words(group)
            found = [value for key in group for value in order[key]]
            reply = found[0] if len(found) == 1 else ", ".join(found[:-1]) + ", and " + found[-1]
            one = Asked(filled.question + filled.answer_prefix, answer(f" {reply}"))
            ask = self.cost(text(one.question), one.answer) + 1
            if used + ask > budget or len(asked) == MOST_QUESTIONS:
                break
            asked.append(one)
            used += ask
        if not asked:
            return None
        lines = [needle(*n) for n in needles]
        if needles_only:
            context = joined([(line, TEXT) for line in lines], separator)
        else:
            room = budget - used
            hay = self.essay(rng, room) if options["haystack"] == "essay" else self.noise(room)
            context = joined(scatter(hay, [(line, TEXT) for line in lines], rng), separator)
        return self.pieces(words(keys[:queries]), context, asked)

    def essay(self, rng: random.Random, room: int) -> list[Segment]:
        """Consecutive sentences of a training document, at most ``room`` tokens; they carry no loss."""
        prose = self.texts.prose
        i, hay = rng.randrange(len(prose)), []
        while True:
            sentence, tokens = prose[i % len(prose)]
            room -= tokens
            if room < 0:
                return hay
            hay.append((sentence, SKIP))
            i += 1

    def noise(self, room: int) -> list[Segment]:
        """Lines of the noise haystack, at most ``room`` tokens."""
        return [(SENTENCES["noise"], TEXT)] * max(0, room // self.count("\n" + SENTENCES["noise"]))

    # --- variable tracking -------------------------------------------------------------------------------------------

    def chain(
        self, rng: random.Random, value: str, hops: int, letters: int, taken: set[str]
    ) -> tuple[list[str], list[str]]:
        """Names and lines of one chain of assignments."""
        split = TRAIN if letters >= 5 else None  # the three-letter names of the example are no evaluation strings
        names = [draws.variable_name(rng, split, letters, taken) for _ in range(hops + 1)]
        lines = [SENTENCES["vt_first"].format(name=names[0], value=value)]
        lines += [SENTENCES["vt_next"].format(name=b, previous=a) for a, b in pairwise(names)]
        return names, lines

    def tracking(self, rng: random.Random, chains: Sequence[list[str]], room: int) -> Piece:
        """The context: chains, each in its order, scattered over noise lines."""
        turns = [i for i, chain in enumerate(chains) for _ in chain]
        rng.shuffle(turns)
        rests = [iter(chain) for chain in chains]
        return joined(scatter(self.noise(room), [(next(rests[i]), TEXT) for i in turns], rng), "\n")

    def vt(self, rng: random.Random, name: str, length: int) -> list[Piece] | None:
        """One to four chains, a question for each; long samples mostly begin with the official one-shot example."""
        definition, options = task(name), task(name).options
        hops = options["hops"] if length >= 400 else rng.randint(1, options["hops"])
        head, example = "", options["example"]
        size = example["tokens"] if length >= 1400 else 250
        if length >= 700 and rng.random() < 0.75:
            value = draws.integer(rng, None, options["value_low"], options["value_high"])
            names, lines = self.chain(rng, value, hops, example["name_letters"], set())
            filled = wording(definition, query=value, num_v=hops + 1)
            ends = filled.instruction + filled.question + filled.answer_prefix + example["between"]
            shown = example["joiner"].join(names) + example["after"]
            room = size - self.cost(text(ends + "\n".join(lines)))
            context = "".join(string for string, _ in self.tracking(rng, [lines], room))
            head = filled.instruction + context + filled.question + filled.answer_prefix + example["between"] + shown
        taken: set[str] = set()
        chains, asked = [], []
        used = self.count(wording(definition, query="1", num_v=1).instruction) + self.cost(text(head)) + 2
        for _ in range(rng.choice([1, 1, 2, 3, 4])):
            value = draws.integer(rng, TRAIN, options["value_low"], options["value_high"], taken)
            names, lines = self.chain(rng, value, hops, options["name_letters"], taken)
            filled = wording(definition, query=value, num_v=hops + 1)
            one = Asked(filled.question + filled.answer_prefix, answer(" ".join(names)))
            cost = self.cost(text("\n".join(lines)), text(one.question), one.answer) + 2
            if used + cost > length:
                break
            used += cost
            chains.append(lines)
            asked.append(one)
        if not asked:
            return None
        context = self.tracking(rng, chains, length - used)
        return self.pieces(wording(definition, query="1", num_v=1), context, rng.sample(asked, len(asked)), head)

    # --- common words ------------------------------------------------------------------------------------------------

    def word_list(self, rng: random.Random, words: Sequence[str], common: int, often: int, seldom: int) -> list[str]:
        """The first ``common`` words ``often`` times, the others ``seldom`` times, in random order."""
        out = list(words[:common]) * often + list(words[common:]) * seldom
        rng.shuffle(out)
        return out

    def numbered(self, words: Sequence[str]) -> str:
        """ "1. word 2. word ..."."""
        return " ".join(SENTENCES["cwe_entry"].format(number=i, word=word) for i, word in enumerate(words, 1))

    def cwe(self, rng: random.Random, name: str, length: int) -> list[Piece] | None:
        """A list of words, some of them frequent; the answer names these in random order, so the target has no order.

        Short samples have fewer common words and as large a gap of frequencies as fits; long ones mostly the official
        one-shot example and, from about 3,500 tokens on, the official 30 against 3.
        """
        definition, options = task(name), task(name).options
        filled = wording(definition)
        common = 3 if length < 400 else 5 if length < 800 else options["common_words"]
        vocabulary, head = self.list_words, ""
        example = options["example"]
        if length < 2400:
            example = example | options["short"]["example"]
        if length >= 1000 and rng.random() < 0.75:
            shown = rng.sample(vocabulary, example["words"])
            listed = self.word_list(
                rng, shown, options["common_words"], example["common_repeats"], example["uncommon_repeats"]
            )
            head = filled.instruction + self.numbered(listed) + filled.question + filled.answer_prefix
            head += example["between"] + self.numbered(shown[: options["common_words"]]) + example["after"]
        question = (filled.question + filled.answer_prefix).replace("10", str(common))
        room = length - self.cost(text(head)) - self.count(filled.instruction) - self.count(question) - 8 * common - 2
        entries = int(room / 6.4)  # an entry has about 6.3 tokens; a list that is too long is cut below
        seldom = options["uncommon_repeats"] if length >= 3500 else rng.choice([1, 1, 2, 3]) if length >= 1500 else 1
        often = int(entries * rng.uniform(0.5, 0.75) / common)
        often = min(often, rng.randint(24, 36) if rng.random() < 0.3 else options["common_repeats"])
        others = (entries - common * often) // seldom
        if often < 2 * seldom or others < 1 or common + others > len(vocabulary):
            return None
        words = rng.sample(vocabulary, common + others)
        tokens = [self.count(f" {word}") for word in words]
        while others:  # drop seldom words until the list fits
            numbers = range(1, common * often + others * seldom + 1)
            size = sum(2 + len(str(i)) for i in numbers)  # a space, one token a digit, a full stop
            if size + often * sum(tokens[:common]) + seldom * sum(tokens[common : common + others]) <= room:
                break
            others -= 1
        if not others:
            return None
        words = words[: common + others]
        listed = self.word_list(rng, words, common, often, seldom)
        reply: Piece = []
        for i, word in enumerate(rng.sample(words[:common], common), 1):
            reply += [(f" {i}.", TEXT), (f" {word}", ANSWER)]
        return self.pieces(filled, text(self.numbered(listed)), [Asked(question, reply)], head)

    # --- coded words -------------------------------------------------------------------------------------------------

    def fwe(self, rng: random.Random, name: str, length: int) -> list[Piece] | None:
        """Coded words with Zipf frequencies; the three most frequent after the dots are the answer."""
        definition, options = task(name), task(name).options
        filled = wording(definition)
        question = filled.question + filled.answer_prefix
        taken: set[str] = set()
        number = max(6, (length - definition.max_new_tokens) // options["tokens_per_word"])
        coded = [draws.coded_word(rng, TRAIN, options["word_letters"], taken) for _ in range(number - 1)]
        coded = [SENTENCES["fwe_noise_word"], *coded]
        cost = np.array([self.cost(text(" " + word)) for word in coded])
        alpha = rng.uniform(*FWE_ALPHA)
        share = np.arange(1, number + 1.0) ** -alpha / zeta(alpha)
        top = options["answers"]
        reply = answer(" " + " ".join(coded[1 : top + 1]))
        room = length - self.count(filled.instruction) - self.count(question) - self.cost(reply) - 4
        total = room / float((share * cost).sum())
        counts = (total * share).astype(int)
        if room < 0 or (np.diff(counts[1 : top + 2]) >= 0).any():
            return None  # two of the words that matter are equally frequent
        while (counts * cost).sum() > room:
            counts[np.flatnonzero(counts)[-1]] -= 1
        listed = [word for word, n in zip(coded, counts.tolist(), strict=True) for _ in range(n)]
        rng.shuffle(listed)
        return self.pieces(filled, text(" ".join(listed)), [Asked(question, reply)])

    # --- registers ---------------------------------------------------------------------------------------------------

    def registers(self, rng: random.Random, name: str, length: int) -> list[Piece] | None:
        """A program with the trace of as many rounds as fit, all of which is the answer."""
        program = registers.program(rng, rng.randint(registers.LEAST_REGISTERS, MOST_REGISTERS), TRAIN, rounds=1)
        used = self.count(REGISTERS["instruction"]) + self.cost(text(program.context)) + 2
        fitting, rounds = None, 1
        while used + self.cost(text(registers.question(rounds)), text(trace := program.run(rounds)[0])) <= length:
            fitting = [text(registers.question(rounds)), answer(trace)]
            rounds += 1
        return fitting and [text(REGISTERS["instruction"]), text(program.context), *fitting]

    # --- questions ---------------------------------------------------------------------------------------------------

    def qa(self, rng: random.Random, name: str, length: int) -> list[Piece] | None:
        """Generated facts about people and towns, up to 24 questions; two hops name the town that links the facts."""
        definition = task(name)
        two_hops = definition.options["dataset"] == "hotpotqa"
        taken: set[str] = set()
        base = wording(definition, query="")
        used = self.count(base.instruction) + 4
        documents: list[str] = []
        queries: list[facts.Query] = []
        per_world = 1 if two_hops else 3
        share = rng.uniform(0.5, 0.85)
        while True:
            world = facts.world(rng, TRAIN, taken)
            pair = [world.person, world.town]
            cost = self.cost(*(text(f"\n\nDocument 10:\n{d}") for d in pair))
            if used + cost > length * share:
                break
            used += cost
            documents += pair
            queries += rng.sample(world.two_hop if two_hops else world.person_queries + world.town_queries, per_world)
        if not documents:
            return None
        asked: list[Asked] = []
        for query in rng.sample(queries, len(queries))[:MOST_QUESTIONS]:
            filled = wording(definition, query=query.question)
            reply = f" {query.bridge}, {query.answer}" if query.bridge else f" {query.answer}"
            one = Asked(filled.question + filled.answer_prefix, answer(reply))
            cost = self.cost(text(one.question), one.answer) + 1
            if used + cost > length:
                break
            used += cost
            asked.append(one)
        if not asked:
            return None
        rng.shuffle(documents)
        shown = [SENTENCES["document"].format(number=i, text=d) for i, d in enumerate(documents, 1)]
        return self.pieces(base, text("\n\n".join(shown)), asked)
