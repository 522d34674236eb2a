"""My vectors: embeddings from anywhere, with the documents they came from and their classes."""

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
for finding in run.findings:
    print(finding.text)

# %%
# Centred, and compared: what is left once the mean is gone?
centred = anisoscope.measure(vectors - vectors.mean(0), units=documents)
anisoscope.compare(run, centred)
