"""My language model: what is attention doing, and which heads are sinks?"""

# pip install 'anisoscope[demo]'

# %%
import os

import anisoscope

# A causal language model of the hub, or a folder written by `save_pretrained`.
MODEL = os.environ.get("MODEL", "openai-community/gpt2")
run = anisoscope.measure(
    MODEL,
    corpus="builtin:python-docs",
    limit=8,
    max_length=128,
    panel="hidden,attention",
)
run.attention().round(3)

# %%
# What was found, in words: sinks, uniform and one-hot heads, and what centring the queries would change.
for finding in run.findings:
    print(finding.text)

# %%
# Head by head: those that give most of their weight to the first token.
heads = run.attention(heads=True)
heads.sort_values("first-token mass", ascending=False).head(10).round(3)

# %%
run.plot("attention-first")
