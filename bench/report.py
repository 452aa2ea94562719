"""Makes tables and plots of all results in bench/results, and the README's table of gains.

Everything is made from the JSON files that the commands wrote, so nothing is typed by hand.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from bench.command_line.record import RESULTS
from bench.tables import markdown
from bench.tables.gains import gains
from bench.tables.markdown import Document
from bench.tables.plot import plot

BEGIN, END = "<!-- gains: made by bench.report -->", "<!-- end of gains -->"

COMPARISONS = ("inference", "training")

BODIES: Mapping[str, Callable[[Document], list[str]]] = {
    "inference": markdown.comparison,
    "training": markdown.comparison,
    "fusion": markdown.fusion,
    "kernels": markdown.kernels,
    "memory": markdown.memory,
    "optimality": markdown.optimality,
    "overhead": markdown.overhead,
    "simulation": markdown.simulation,
}
"""The body of a command's section, in addition to its targets."""

Documents = Mapping[str, Mapping[str, Document]]
"""Results by directory and file name."""


class ReportError(Exception):
    """A file is not valid; the message says which, and what to do."""


def read(results: Path) -> Documents:
    """Reads all results, by the names of their directory and file.

    Raises:
        ReportError: the directory does not exist, or a file in it is not a result.
    """
    if not results.is_dir():
        raise ReportError(f"there is no directory {results}")
    found: dict[str, dict[str, Document]] = {}
    for path in sorted(results.glob("*/*.json")):
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            _ = document["command"], document["environment"]["torch"]
        except (ValueError, KeyError, TypeError) as error:
            raise ReportError(f"{path} is no result of a command: {error!r}; delete it") from error
        found.setdefault(path.parent.name, {})[path.stem] = document
    return found


def page(documents: Documents) -> str:
    """The Markdown page of all results."""
    lines = ["# Results", "", "Made by `python -m bench.report` from the JSON files beside it."]
    for device, kept in documents.items():
        lines += ["", f"## {device}"]
        for stem, document in kept.items():
            lines += ["", f"### {stem}", "", *_origin(document)]
            body = BODIES.get(document["command"], _nothing)(document)
            lines += ["", *body] if body else []
            if document["command"] in COMPARISONS:
                lines += ["", f"![{stem}]({device}/{stem}.svg)"]
            targets = markdown.targets(document)
            lines += ["", *targets] if targets else []
    return "\n".join(lines) + "\n"


def _nothing(_: Document) -> list[str]:
    return []


def _origin(document: Document) -> Iterator[str]:
    """The command of the results, and the environment in which they were made."""
    at = document["environment"]
    yield f"`{_command(document)}`"
    yield ""
    if "note" in document:
        yield f"These were {document['note']}."
        yield ""
    hardware = ", ".join(at["gpus"]) or f"{at['processor']}, no GPU"
    versions = f"PyTorch {at['torch']}, Python {at['python']}"
    threads = f"{at['n_cpus']} CPUs, {at['n_torch_threads']} threads, load {at['load_average']:.1f}"
    changed = " with changes" if at["modified"] else ""
    yield f"{at['date']}, commit {at['commit']}{changed}, {versions}, {hardware}, {threads}"


def _command(document: Document) -> str:
    """The command line."""
    words = [f"python -m bench.{document['command']}"]
    for option, value in document["options"].items():
        flag = f"--{option.replace('_', '-')}"
        if isinstance(value, list):
            words += [flag, *map(str, value)]
        elif value is True:
            words.append(flag)
        elif value is not None and value is not False:
            words += [flag, str(value)]
    return " ".join(words)


def with_gains(readme: str, documents: Documents) -> str:
    """The README with a new table of gains.

    Raises:
        ReportError: the README has no place for it.
    """
    head, begin, rest = readme.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise ReportError(f"the README has no lines {BEGIN} and {END}, between which gains go")
    kept = [document for commands in documents.values() for document in commands.values()]
    lines = "\n".join(gains([d for d in kept if d["command"] == "inference"]))
    return f"{head}{begin}\n{lines}\n{end}{tail}"


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the page; returns 0, or 1 if a file is not valid."""
    options = argparse.ArgumentParser(prog="python -m bench.report", description=__doc__)
    options.add_argument("--results", type=Path, default=RESULTS, help="directory of results")
    options.add_argument("--readme", type=Path, default=Path("README.md"))
    args = options.parse_args(argv)
    try:
        documents = read(args.results)
        readme = with_gains(args.readme.read_text(encoding="utf-8"), documents)
    except (ReportError, OSError) as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    (args.results / "README.md").write_text(page(documents), encoding="utf-8")
    for device, kept in documents.items():
        for stem, document in kept.items():
            if document["command"] in COMPARISONS:
                path = args.results / device / f"{stem}.svg"
                plot(markdown.rows_of(document), f"{stem} on {device}", path)
    args.readme.write_text(readme, encoding="utf-8")
    print(f"written: {args.results / 'README.md'}, plots beside it, gains in {args.readme}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
