"""What the lint checks share: which files are ours, their text without comments, and how a finding is printed.

A finding is one line, `file:line: [rule] what is wrong and the remedy`. Lines that must break a rule say so, with the
reason, in or above them; it holds up to the next blank line:

    // lint: allow(mutable-global): a signal handler can reach nothing else
"""

import re
import sys
from pathlib import Path

CPP = (".h", ".cpp", ".cu", ".cuh")
FOLDERS = ("d9d", "tests", "examples", "benchmarks")

_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
      | (?P<raw>R"(?P<tag>[^\s()\\]{0,16})\(.*?\)(?P=tag)")
      | (?P<string>"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+')""",
    re.VERBOSE | re.DOTALL,
)


def root_from_arguments() -> Path:
    """The tree to check: the first argument, or the repository of this script."""
    return Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent


def files(root: Path, suffixes=CPP, folders=FOLDERS) -> list[Path]:
    """Paths relative to `root`, sorted. Walks folders and never asks git: a source archive is checked the same way."""
    found = (path for folder in folders for path in (root / folder).rglob("*"))
    return sorted(path.relative_to(root) for path in found if path.is_file() and path.suffix in suffixes)


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _spaces(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def without_comments(text: str) -> str:
    """Comments become spaces; line numbers stay."""
    return _TOKEN.sub(lambda match: _spaces(match[0]) if match["comment"] else match[0], text)


def code_only(text: str) -> str:
    """Comments and what stands between quotes become spaces; line numbers stay."""

    def blank(match: re.Match) -> str:
        return _spaces(match[0]) if match["comment"] else match[0][0] + _spaces(match[0][1:-1]) + match[0][-1]

    return _TOKEN.sub(blank, text)


def prose_only(text: str) -> str:
    """Comments and what stands between quotes; everything else becomes spaces; line numbers stay."""
    prose = list(_spaces(text))
    for match in _TOKEN.finditer(text):
        prose[match.start() : match.end()] = match[0]
    return "".join(prose)


def line_of(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


def markdown_cell(text: str) -> str:
    """For a table of Markdown, where code in backticks needs no escapes except of bars."""

    def escape(match: re.Match) -> str:
        return match["code"].replace("|", r"\|") if match["code"] else "\\" + match[0]

    return re.sub(r"(?P<code>`[^`]*`)|[*<|]", escape, text)


class Report:
    """Collects findings, prints each as it comes, ends the program."""

    def __init__(self, root: Path):
        self._root = root
        self._count = 0

    def add(self, path: Path, line: int, rule: str, text: str) -> None:
        if self._is_allowed(path, line, rule):
            return
        self._count += 1
        print(f"{path}:{line}: [{rule}] {text}")

    def _is_allowed(self, path: Path, line: int, rule: str) -> bool:
        above = "\n".join(read(self._root / path).splitlines()[:line])
        paragraph = re.split(r"\n[ \t]*\n", above)[-1]
        return re.search(rf"lint: allow\({re.escape(rule)}\): *\S", paragraph) is not None

    def end(self) -> None:
        sys.exit(1 if self._count else 0)
