#!/usr/bin/env bash
# Install the tool alone, without the papers, in an empty environment; run its tests and the demo there: `make test-alone`.
# Usage: tools/alone.sh [folder]   (default: build/alone; PYTHON and TORCH as in the Makefile)
set -euo pipefail
unset PYTHONPATH  # a checkout named there would bring the papers
root=$(cd "$(dirname "$0")/.." && pwd)
place=$(mkdir -p "${1:-$root/build/alone}" && cd "${1:-$root/build/alone}" && pwd)
rm -rf "${place:?}"/*
"${PYTHON:-python3}" -m venv "$place/venv"
bin="$place/venv/bin"
"$bin/pip" install --quiet --disable-pip-version-check -c "$root/constraints.txt" "${TORCH:-torch==2.13.0}"
"$bin/pip" install --quiet --disable-pip-version-check -c "$root/constraints.txt" -e "$root[dev]"
if "$bin/python" -c 'import anisoscope_papers' 2>/dev/null; then echo "the papers are here too" >&2; exit 1; fi
"$bin/anisoscope" measure builtin:minilm --corpus builtin:python-docs --limit 10 --panel hidden --output "$place/demo"
cd "$root"
OMP_NUM_THREADS=1 "$bin/pytest" -n 2 --dist worksteal tests
echo "alone: installed, tested and used without the papers"
