"""Build what is published of both distributions, and use it as a stranger would: `make release` (docs/releasing.md).

Wheels and source archives, from copies whose addresses are filled in; `twine check`; recipes for conda-forge, rendered;
both READMEs as the index shows them; then an empty environment for each Python, in which the tool alone measures
vectors, its demo runs, and a paper is reproduced: every command of the task pages and the README's Python, outside the
checkout. What goes wrong ends it.

    python tools/release.py --repository https://github.com/OWNER/anisoscope
    python tools/release.py --set-version 0.2.0
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

from conda_recipe import render_recipes, write_recipes
from release_sources import (
    DISTRIBUTIONS,
    PAPERS,
    ROOT,
    TOOL,
    Distribution,
    check_repository,
    copy_sources,
    read_version,
    relative_addresses,
    set_version,
    versions,
)

REHEARSAL = "https://github.com/OWNER/anisoscope"
"""What stands for the repository where none is named: nothing that was built with it may be published."""
BUILDERS = ("build", "twine", "readme_renderer[md]", "py-rattler-build")
TASK_PAGES = sorted(page.stem for page in (ROOT / "docs" / "tasks").glob("*.md"))
PAGES_OF_PAPERS = ("classifier", "reproduce")
"""Task pages whose commands come with the second distribution."""
NOT_PACKAGED = ("tests/", "tools/", "examples/", "results/", "benchmarks/")


def main(words: Sequence[str] | None = None) -> int:
    """Read the command line, and release; the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--repository",
        default=os.environ.get("REPOSITORY", ""),
        help="address of the public repository",
    )
    parser.add_argument(
        "--site",
        default=os.environ.get("SITE", ""),
        help="address of the documentation's site",
    )
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        help="a Python to install into; several: repeat",
    )
    parser.add_argument(
        "--light",
        action="append",
        default=[],
        help="a Python for which torch is not installed",
    )
    parser.add_argument(
        "--torch",
        default=os.environ.get("TORCH") or "torch==2.13.0",
        help="requirement for torch",
    )
    parser.add_argument(
        "--torch-index",
        default=os.environ.get("TORCH_INDEX", ""),
        help="index that torch comes from",
    )
    parser.add_argument(
        "--dist", type=Path, default=ROOT / "dist", help="folder of what is built"
    )
    parser.add_argument(
        "--build-only", action="store_true", help="build and check, install nowhere"
    )
    parser.add_argument(
        "--set-version",
        metavar="X.Y.Z",
        help="write the version into all places, and stop",
    )
    asked = parser.parse_args(words)
    try:
        if asked.set_version:
            set_version(asked.set_version)
            say(f"version {asked.set_version} in {', '.join(versions())}")
            return 0
        release(asked)
    except (ValueError, Failed) as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(
            f"release: {' '.join(map(str, error.cmd))} ended with {error.returncode}",
            file=sys.stderr,
        )
        return 1
    return 0


class Failed(Exception):
    """What was built is not what is to be published."""


def say(text: str) -> None:
    """Tell the person who releases."""
    print(text, flush=True)


def release(asked: argparse.Namespace) -> None:
    """Build, check, install and use both distributions."""
    # A checkout that is named there would pass for an installed package.
    os.environ.pop("PYTHONPATH", None)
    repository = check_repository(asked.repository or REHEARSAL)
    found = versions()
    if len(set(found.values())) > 1:
        raise Failed(
            f"one version everywhere; got {found}; python tools/release.py --set-version X.Y.Z writes it"
        )
    tag = os.environ.get("GITHUB_REF_NAME", "")
    if tag.startswith("v") and tag != f"v{read_version()}":
        raise Failed(
            f"the tag v{read_version()}, the version in {TOOL.package}/__init__.py; got {tag}"
        )
    with tempfile.TemporaryDirectory(prefix="anisoscope-release-") as folder:
        place = Path(folder)
        archives = build(place, repository, asked)
        if not asked.build_only:
            for python in asked.python or [sys.executable]:
                install_and_use(place, python, archives, asked)
            for python in asked.light:
                install_light(place, python, archives)
    say(f"release: {len(archives)} archives of {read_version()} in {asked.dist}")
    if not asked.repository:
        say(
            "release: a rehearsal: no repository was named (--repository), so these archives are not to be published"
        )


def make_environment(place: Path, python: str) -> Path:
    """Make an empty environment; its folder of programs."""
    subprocess.run([python, "-m", "venv", place], check=True)
    return place / ("Scripts" if os.name == "nt" else "bin")


def pip_install(programs: Path, *what: str | Path, constrained: bool = True) -> None:
    """Install packages into an environment."""
    constraints: list[str | Path] = (
        ["-c", ROOT / "constraints.txt"] if constrained else []
    )
    command: list[str | Path] = [
        programs / "python",
        "-m",
        "pip",
        "install",
        "-qq",
        "--disable-pip-version-check",
    ]
    subprocess.run([*command, *constraints, *what], check=True)


def build(place: Path, repository: str, asked: argparse.Namespace) -> list[Path]:
    """Build wheels and source archives of both, and look at them as the index will; their paths."""
    started = time.monotonic()
    programs = make_environment(place / "builders", sys.executable)
    pip_install(programs, *BUILDERS, constrained=False)
    folders = copy_sources(place / "sources", repository, asked.site)
    shutil.rmtree(asked.dist, ignore_errors=True)
    for folder in folders.values():
        command = [programs / "python", "-m", "build", "--outdir", asked.dist, folder]
        subprocess.run(command, check=True, capture_output=True)
    archives = sorted([*asked.dist.glob("*.whl"), *asked.dist.glob("*.tar.gz")])
    if len(archives) != 2 * len(DISTRIBUTIONS):
        raise Failed(
            f"a wheel and a source archive of each distribution; got {[path.name for path in archives]}"
        )
    for distribution in DISTRIBUTIONS:
        check_contents(distribution, archives)
        check_readme(programs, distribution, folders[distribution.name] / "README.md")
    subprocess.run(
        [programs / "python", "-m", "twine", "check", "--strict", *archives], check=True
    )
    for path in archives:
        say(f"{path.name}: {path.stat().st_size / 1e6:.2f} MB")
    recipes = write_recipes(asked.dist, repository)
    for line in render_recipes(programs / "python", recipes).splitlines():
        say(f"recipe for conda-forge: {line}")
    say(f"built and checked in {time.monotonic() - started:.0f} s")
    return archives


def wheel_of(distribution: Distribution, archives: list[Path]) -> Path:
    """The wheel of a distribution."""
    return next(
        path
        for path in archives
        if path.name.startswith(f"{distribution.package}-") and path.suffix == ".whl"
    )


def check_contents(distribution: Distribution, archives: list[Path]) -> None:
    """Both archives hold every file of the package and its licence, the wheel nothing else. Failed if not."""
    wheel = wheel_of(distribution, archives)
    source = next(
        path
        for path in archives
        if path.name.startswith(f"{distribution.package}-") and path != wheel
    )
    folder = ROOT / distribution.folder / "src"
    wanted = set()
    for path in (folder / distribution.package).rglob("*"):
        if path.is_file() and path.suffix != ".pyc":
            wanted.add(path.relative_to(folder).as_posix())
    with zipfile.ZipFile(wheel) as held:
        names = set(held.namelist())
    package = {name for name in names if ".dist-info/" not in name}
    if package != wanted:
        raise Failed(
            f"{wheel.name} lacks {sorted(wanted - package)}, and holds too much: {sorted(package - wanted)}"
        )
    if not any(name.endswith("/licenses/LICENSE") for name in names):
        raise Failed(f"{wheel.name} holds no LICENSE")
    with tarfile.open(source) as held_source:
        inside = {name.partition("/")[2] for name in held_source.getnames()}
    lacking = {f"src/{name}" for name in wanted} | {
        "LICENSE",
        "README.md",
        "pyproject.toml",
        "CHANGELOG.md",
    }
    if lacking - inside:
        raise Failed(f"{source.name} lacks {sorted(lacking - inside)}")
    if strange := [name for name in inside if name.startswith(NOT_PACKAGED)]:
        raise Failed(f"{source.name} holds {strange[:5]}")


def check_readme(programs: Path, distribution: Distribution, readme: Path) -> None:
    """The README as the index renders it: it can be rendered, and no link or picture is relative. Failed if not."""
    page = readme.with_suffix(".html")
    subprocess.run(
        [programs / "python", "-m", "readme_renderer", readme, "-o", page], check=True
    )
    html = page.read_text("utf-8")
    if relative := relative_addresses(html):
        raise Failed(
            f"the page of {distribution.name} on the index: these would lead nowhere: {relative}"
        )
    say(
        f"README of {distribution.name}: {html.count('<a ')} links, {html.count('<img ')} pictures, all absolute"
    )


def install_and_use(
    place: Path, python: str, archives: list[Path], asked: argparse.Namespace
) -> None:
    """Install the tool, then its demo, then the papers, and use each before the next comes."""
    outside = place / "outside"
    shutil.rmtree(outside, ignore_errors=True)
    outside.mkdir()
    programs = make_environment(outside / "venv", python)
    empty = megabytes(outside / "venv")
    tool, papers = wheel_of(TOOL, archives), wheel_of(PAPERS, archives)
    index = ["--index-url", asked.torch_index] if asked.torch_index else []
    pip_install(programs, *index, asked.torch)

    def use(*words: str) -> str:
        return run_outside(outside, [str(programs / words[0]), *words[1:]])

    def tell_size(what: str) -> None:
        version = use(
            "python", "-c", "import platform; print(platform.python_version())"
        ).strip()
        say(f"Python {version}: {what}: {megabytes(outside / 'venv') - empty:,.0f} MB")

    pip_install(programs, tool)
    tell_size("anisoscope")
    use(
        "python",
        "-c",
        "import numpy; numpy.save('v.npy', numpy.random.default_rng(0).normal(size=(300, 16)) + 1)",
    )
    use("anisoscope", "measure", "v.npy", "--output", "vectors")
    use("anisoscope", "cure", "v.npy")
    use("anisoscope", "doctor")
    where = use("python", "-c", "import anisoscope; print(anisoscope.__file__)")
    if "site-packages" not in where:
        raise Failed(f"anisoscope in the environment; got {where}")

    pip_install(programs, f"{tool}[demo]")
    tell_size("anisoscope[demo]")
    demo = [
        "anisoscope",
        "measure",
        "builtin:minilm",
        "--corpus",
        "builtin:python-docs",
        "--limit",
        "10",
    ]
    use(*demo, "--output", "demo")
    if not (outside / "demo" / "report.html").is_file():
        raise Failed("a report of the demo")
    (outside / "text.txt").write_text(
        "".join(f"{n}. The cat sat on the mat.\n" for n in range(30)), "utf-8"
    )
    use(
        "anisoscope",
        "measure",
        "builtin:minilm",
        "--corpus",
        "text.txt",
        "--documents",
        "line",
        "--output",
        "text",
    )
    use("anisoscope", "compare", "demo", "text")
    shutil.copy(ROOT / "examples" / "my_vectors.py", outside / "my_vectors.py")
    use("python", "my_vectors.py")
    (outside / "readme.py").write_text(python_of_readme(), "utf-8")
    use("python", "readme.py")
    pip_install(programs, f"{tool}[demo,train]")
    tell_size("anisoscope[demo,train]")
    use_pages(use, [name for name in TASK_PAGES if name not in PAGES_OF_PAPERS])

    pip_install(programs, "--find-links", asked.dist, papers)
    tell_size("anisoscope-papers")
    use("anisoscope", "list", "studies")
    use(
        "anisoscope",
        "train",
        "masked-lm",
        "--preset",
        "tiny",
        "--steps",
        "2",
        "--output",
        "trained",
    )
    use_pages(use, PAGES_OF_PAPERS)
    use("anisoscope", "doctor")
    shutil.rmtree(outside)


def python_of_readme() -> str:
    """The README's Python, in its order, as one script."""
    text = (ROOT / "README.md").read_text("utf-8")
    return "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))


def use_pages(use: Callable[..., str], names: Sequence[str]) -> None:
    """Type every command of task pages, and run their Python: what they name is there in what was installed."""
    use("python", str(ROOT / "tools" / "task_pages.py"), "--into", "pages", *names)


def install_light(place: Path, python: str, archives: list[Path]) -> None:
    """The tool without torch, where torch cannot be had: it is imported, says what there is, and what it lacks."""
    outside = place / "light"
    shutil.rmtree(outside, ignore_errors=True)
    outside.mkdir()
    programs = make_environment(outside / "venv", python)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    pip_install(
        programs,
        *(text for text in project["dependencies"] if not text.startswith("torch")),
        constrained=False,
    )
    pip_install(
        programs,
        "--no-deps",
        *(wheel_of(distribution, archives) for distribution in DISTRIBUTIONS),
    )
    for words in (
        ["--help"],
        ["list", "metrics"],
        ["list", "corpora"],
        ["list", "studies"],
    ):
        run_outside(outside, [str(programs / "anisoscope"), *words])
    done = subprocess.run(
        [programs / "anisoscope", "doctor"],
        cwd=outside,
        capture_output=True,
        text=True,
        check=False,
    )
    if "torch missing" not in done.stdout:
        raise Failed(
            f"doctor to say that torch is missing; got {done.stdout} {done.stderr}"
        )
    say(f"{python}: light: --help, lists, doctor (torch was not installed)")
    shutil.rmtree(outside)


def run_outside(folder: Path, command: Sequence[str]) -> str:
    """Run a command in a folder outside the checkout; what it printed. Failed, with what it said, if it fails."""
    started = time.monotonic()
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False
    )
    shown = " ".join([Path(command[0]).name, *command[1:]]).splitlines()[0][:90]
    if done.returncode:
        raise Failed(
            f"{shown} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        )
    say(f"  {shown}: {time.monotonic() - started:.0f} s")
    return done.stdout


def megabytes(folder: Path) -> float:
    """What a folder takes on the disk, in MB; a file that has several names counts once."""
    seen = {}
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            state = path.stat()
            seen[state.st_ino] = state.st_size
    return sum(seen.values()) / 1e6


if __name__ == "__main__":
    sys.exit(main())
