"""My training run: how does the geometry change while the model is trained?"""

# %%
import anisoscope
import torch
from transformers import BertConfig, BertForMaskedLM

torch.manual_seed(0)
config = BertConfig(
    vocab_size=60,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
)
model = BertForMaskedLM(config)
texts = (
    torch.randint(5, 60, (64, 24)).sort(dim=1).values
)  # sorted numbers: easy to predict
probe = [{"input_ids": texts[:16]}]

# %%
# A few batches are looked at, at steps 0, 1, 2, 4 …; a Trainer takes integrations.transformers_callback instead.
monitor = anisoscope.Monitor(probe, every=20, output="runs/my-training")
optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(61):
    monitor(model, step)
    batch = texts[torch.randperm(64)[:16]]
    masked = torch.where(torch.rand(batch.shape) < 0.2, 4, batch)
    model(input_ids=masked, labels=batch).loss.backward()
    optimiser.step()
    optimiser.zero_grad()

# %%
# The same long table as of a run, with the column `step`.
rows = monitor.records
rows = rows[(rows["metric"] == "mean_cosine") & (rows["site"] == "hidden")]
rows.pivot_table(index="step", columns="layer", values="value").round(3)
