"""My classifier: is the direction of an utterance its class, and what is attention worth?"""

# %%
import anisoscope
import anisoscope_papers

# Any folder of a text classifier; here a small one is trained on a made-up corpus, in seconds.
small = {"epochs": 3, "limit": 300, "vectors": "random", "dim": 16}
folder = anisoscope_papers.train(
    "classifier",
    corpus="synthetic",
    output="runs/my-classifier",
    overwrite=True,
    **small,
)

# %%
run = anisoscope.classes(folder, limit=120, few=20)
rows = run.records
auc = rows[(rows["metric"] == "class_direction.auc") & rows["component"].isna()]
auc[["layer", "value", "low", "high"]].round(3)

# %%
# What accuracy is left when attention is made uniform, shuffled, or taken from another utterance.
left = rows[rows["metric"] == "ablation.accuracy"]
left[["component", "layer", "value", "low", "high"]].round(3)

# %%
run.plot("classes")
