#!/usr/bin/env bash
# Build the wheel, install it in an empty environment outside the repository, and use it there: demo, a text, vectors, an example.
# Usage: tools/wheel.sh [folder]   (default: build/wheel; PYTHON and TORCH as in the Makefile)
set -euo pipefail
unset PYTHONPATH  # a checkout named there would pass for an installed package
root=$(cd "$(dirname "$0")/.." && pwd)
place=$(mkdir -p "${1:-$root/build/wheel}" && cd "${1:-$root/build/wheel}" && pwd)
rm -rf "$place"/* "$root/build/lib"  # what an earlier build left would go into the wheel
"${PYTHON:-python3}" -m venv "$place/venv"
bin="$place/venv/bin"
"$bin/pip" wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$place" "$root"
held=$("$bin/python" -m zipfile --list "$place"/*.whl | cut -d" " -f1)
for file in $(cd "$root/src/anisoscope" && find . -type f -not -name '*.pyc' -printf '%P\n'); do
    grep -qxF "anisoscope/$file" <<<"$held" || { echo "the wheel lacks $file" >&2; exit 1; }
done
if grep -E '^(tests|tools|examples|results)/|tiny' <<<"$held"; then echo "the wheel holds what is no part of the package" >&2; exit 1; fi
"$bin/pip" install --quiet --disable-pip-version-check -c "$root/constraints.txt" "${TORCH:-torch==2.13.0}"
"$bin/pip" install --quiet --disable-pip-version-check -c "$root/constraints.txt" "$(ls "$place"/*.whl)[demo]"
cd "$place"
"$bin/anisoscope" measure builtin:minilm --corpus builtin:python-docs --limit 10 --panel hidden --output demo
for i in $(seq 30); do echo "$i. The cat sat on the mat, and a dog barked $i times."; done >text.txt
"$bin/anisoscope" measure builtin:minilm --corpus text.txt --documents line --panel hidden --output text
"$bin/python" -c 'import numpy; numpy.save("vectors.npy", numpy.random.default_rng(0).normal(size=(300, 16)) + 1)'
"$bin/anisoscope" measure vectors.npy --output vectors
cp "$root/examples/my_vectors.ipynb" .
"$bin/pip" install --quiet --disable-pip-version-check -c "$root/constraints.txt" nbclient ipykernel
"$bin/jupyter-execute" --inplace my_vectors.ipynb
"$bin/python" - <<'PYTHON'
import json

import anisoscope

assert "site-packages" in anisoscope.__file__, anisoscope.__file__
assert "<table" in json.dumps(json.load(open("my_vectors.ipynb"))), "a notebook that shows nothing"
print("wheel: installed, and used")
PYTHON
