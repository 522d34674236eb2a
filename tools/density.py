"""Count how dense the code of each package is, in a table: `python tools/density.py [--functions] [FOLDER …]`.

The figures find places to look at; none of them is a limit. A reader decides what is plain.

- tokens a line: of lines that hold code
- comprehensions, conditional expressions, comments: per 100 lines of code
- complex: functions with more than ten ways through them, a nested function counted in the one around it
- verbs: functions whose first word is in `VERBS`, of all that are no property
- where, if: per 1,000 words of docstrings
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

TREE = Path(__file__).parents[1]
FOLDERS = (TREE / "src" / "anisoscope", TREE / "papers" / "src" / "anisoscope_papers")
COMPLEX = 10
NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
VERBS = frozenset(
    """
    abbreviate accept accumulate adapt add align allocate allow announce answer append apply are arrange as ask assert
    assign attach attend average back balance batch begin begins bin bind blame block bootstrap bound build cache
    calibrate call can cancel capture carry cast centre change check choose classify clean clear close collapse collect
    combine compare complete compress compute concatenate configure connect construct consume contain contradict
    continue convert copy correct correlate count counts cover create cross cut decide declare decode decompose
    deduplicate default define delay delete describe detect determine digest disable discard discount discover display
    divide does download draw drop echo embed emit enable encode end ensure enter erase escape estimate evaluate exclude
    execute expand expect explain export extend extract fail fetch fill filter find finish fit fix flatten fold follow
    follows force forget format freeze gather generate get give go group guard guess hand handle has hash hide hold
    holds identify ignore import indent infer inform initialise insert inspect install intercept interpolate invert is
    iter iterate join judge keep knows label launch lay leave let limit link list load locate log look lookup lose lower
    main make map mark mask match may measure merge mix move must name needs normalise note notice number observe offer
    omit open order pack pad parse partition pass patch peek perturb pick place plan plot point pool predict prefer
    prefetch prefix prepare print probe project propagate prove provide prune pull push put quote raise rank read reads
    rebuild recall receive recognise record redraw reduce refer refuse register regress reject release remember remove
    rename render repeat replace report require resample resize resolve rest restore restrict resume retry return reuse
    reverse roll rotate round rows run sample save say scale scan search see seed select send separate serve set settle
    shift shorten should show shuffle sign silence simulate skip slice solve sort split stack standardise start state
    step stop store strip subtract suggest sum summarise supports suspend swap switch synchronise take tally tell test
    tie tile to toggle tokenise tokenize trace track train transform transpose trim truncate try turn uncentre undo
    unembed unite unpack unwrap update use validate verify visit wait walk warn watch weigh weight whiten widen wrap
    write yield
    """.split()  # noqa: SIM905
)
"""First words that make a name of a function a verb: imperatives, and `is`, `has`, `can` of what answers yes or no."""

FORKS = (
    ast.If,
    ast.For,
    ast.AsyncFor,
    ast.While,
    ast.ExceptHandler,
    ast.IfExp,
    ast.comprehension,
    ast.match_case,
)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class Density:
    """Counts over the files of one package."""

    lines: int = 0
    tokens: int = 0
    comments: int = 0
    comprehensions: int = 0
    conditionals: int = 0
    functions: int = 0
    verbs: int = 0
    complex: list[str] = field(default_factory=list)
    words: int = 0
    wheres: int = 0
    ifs: int = 0

    def add(self, other: "Density") -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def row(self) -> list[str]:
        per_100 = [
            100 * n / max(self.lines, 1)
            for n in (self.comprehensions, self.conditionals, self.comments)
        ]
        verbs = 100 * self.verbs / max(self.functions, 1)
        per_1000 = [1000 * n / max(self.words, 1) for n in (self.wheres, self.ifs)]
        numbers = [self.tokens / max(self.lines, 1), *per_100]
        return [
            str(self.lines),
            *(f"{x:.1f}" for x in numbers),
            str(len(self.complex)),
            f"{verbs:.0f} %",
            *(f"{x:.1f}" for x in per_1000),
        ]


HEADER = (
    "package",
    "lines",
    "tokens",
    "compr.",
    "cond.",
    "comm.",
    "complex",
    "verbs",
    "where",
    "if",
)


def measure_file(path: Path) -> Density:
    """Count one file."""
    text = path.read_text("utf-8")
    tree = ast.parse(text)
    density = Density()
    docstrings = list(iter_docstrings(tree))
    in_docstrings = {
        line
        for node in docstrings
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    count_tokens(text, in_docstrings, density)
    for node in ast.walk(tree):
        density.comprehensions += isinstance(node, COMPREHENSIONS)
        density.conditionals += isinstance(node, ast.IfExp)
    for owner in iter_functions(tree):
        if count_ways(owner) > COMPLEX:
            density.complex.append(
                f"{path.relative_to(TREE)}:{owner.lineno} {owner.name}"
            )
        if not is_property(owner) and not owner.name.startswith("__"):
            density.functions += 1
            density.verbs += is_verb(owner.name)
    for node in docstrings:
        words = (
            re.findall(r"[A-Za-z]+", str(node.value.value))
            if isinstance(node.value, ast.Constant)
            else []
        )
        density.words += len(words)
        density.wheres += sum(word.lower() == "where" for word in words)
        density.ifs += sum(word.lower() == "if" for word in words)
    return density


def count_tokens(text: str, in_docstrings: set[int], density: Density) -> None:
    """Add lines with code, their tokens and comments; docstrings are no code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            density.comments += 1
        elif token.type not in NOT_CODE and token.start[0] not in in_docstrings:
            density.tokens += 1
            lines.update(range(token.start[0], token.end[0] + 1))
    density.lines += len(lines)


def iter_docstrings(tree: ast.AST) -> Iterator[ast.Expr]:
    """Yield texts that stand as a statement: of modules, classes, functions and assignments."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node


def iter_functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield functions and methods, without those inside a function."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, FUNCTIONS):
            yield node
        else:
            yield from iter_functions(node)


def count_ways(function: ast.AST) -> int:
    """Return the cyclomatic complexity: one more than the forks; `and` and `or` count one an operand."""
    ways = 1
    for node in ast.walk(function):
        if isinstance(node, FORKS):
            ways += 1
        elif isinstance(node, ast.BoolOp):
            ways += len(node.values) - 1
        if isinstance(node, ast.comprehension):
            ways += len(node.ifs)
    return ways


def is_property(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(
        "property" in ast.unparse(decorator) for decorator in function.decorator_list
    )


def is_verb(name: str) -> bool:
    return name.strip("_").split("_")[0].lower() in VERBS


def measure_packages(folder: Path) -> dict[str, Density]:
    """Return {package: its density}; files beside packages come under the name of the folder."""
    packages: dict[str, Density] = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).parts
        name = parts[0] if len(parts) > 1 else f"{folder.name} (top)"
        packages.setdefault(name, Density()).add(measure_file(path))
    return packages


def print_table(folder: Path) -> None:
    packages = measure_packages(folder)
    total = Density()
    for density in packages.values():
        total.add(density)
    rows = [(name, *density.row()) for name, density in packages.items()]
    print("| " + " | ".join(HEADER) + " |")
    print("|---" * len(HEADER) + "|")
    for row in (*rows, (f"all of {folder.name}", *total.row())):
        print("| " + " | ".join(row) + " |")
    print()


def print_functions(folder: Path) -> None:
    """Print every function above the complexity, so that one can look at them."""
    for density in measure_packages(folder).values():
        for line in density.complex:
            print(line)


def main(arguments: list[str]) -> None:
    folders = [Path(a).resolve() for a in arguments if not a.startswith("--")] or list(
        FOLDERS
    )
    show = print_functions if "--functions" in arguments else print_table
    for folder in folders:
        show(folder)


if __name__ == "__main__":
    main(sys.argv[1:])
