"""Figure 1 of Godey et al. (2024): are language models anisotropic in every layer?"""

# pip install anisoscope-papers 'anisoscope[demo]'

# %%
import os

import anisoscope
import anisoscope_papers

# The models of the figure.
MODELS = os.environ.get("MODELS", "bert-base,roberta-base,gpt2,t5-base").split(",")
how = {
    "corpus": "builtin:python-docs",
    "limit": 8,
    "max_length": 128,
    "panel": "hidden",
}
runs = {name: anisoscope.measure(name, **how) for name in MODELS}

# %%
# The paper's claim: at least one layer of each has a mean cosine of .2 or more. Ours holds if the whole interval does.
for name, run in runs.items():
    table = run.table()
    top = table.loc[table["A"].idxmax()]
    word = (
        "holds"
        if top["low"] >= 0.2
        else "contrary"
        if table["high"].max() < 0.2
        else "undecided"
    )
    print(
        f"{name}: A {top['A']:.3f} [{top['low']:.3f}, {top['high']:.3f}] at layer {top['layer']}: {word}"
    )

# %%
first, *_ = runs.values()
first.table().round(3)

# %%
first.plot("anisotropy")

# %%
# The whole study, on WikiText-103, judged and drawn (minutes to hours):
# anisoscope_papers.reproduce("godey2024", only="fig1", settings="paper", output="results")
anisoscope_papers.__version__
