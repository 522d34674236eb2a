"""My vectors: which cosine is noise, what makes them alike, and does a cure help?"""

# pip install 'anisoscope[report]'

# %%
import numpy as np

import anisoscope

# Yours: np.load, a list of layers, or the name of a .npy, .npz, .safetensors, .parquet or .csv file.
rng = np.random.default_rng(0)
classes = rng.integers(0, 3, 600)
vectors = rng.normal(size=(600, 32)) + 0.5 + rng.normal(size=(3, 32))[classes]
documents = np.arange(600) // 10

# %%
# Intervals leave out whole documents: ten vectors of one document are no ten independent ones.
run = anisoscope.measure(vectors, units=documents, labels=classes)
run

# %%
# The cause: one dimension, a few, or the mean vector?
for finding in run.findings:
    print(finding.text)

# %%
# The floor: below which cosine are pairs of unrelated documents?
floor = anisoscope.measure(vectors, units=documents, metrics="floor")
floor.table().round(3)

# %%
# The cure, tried on documents that it was not fitted on. With labels it is said, too, if a class is harder to find.
from anisoscope.cures.trial import try_cures

trial = try_cures(
    vectors, ("centre", "whiten", "remove-top:1"), units=documents, labels=classes
)
print(trial.text)
trial.table().round(3)

# %%
# Applied, and compared: what is left once the mean is gone?
centred = anisoscope.measure(vectors - vectors.mean(0), units=documents)
anisoscope.compare(run, centred)
