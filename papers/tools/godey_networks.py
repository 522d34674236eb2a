"""What each network that others trained says for and against the paper of Godey et al. 2024: a table of its page."""

from collections.abc import Iterator
from typing import Any

from committed import RESULTS, distinct_verdicts
from pages import table_row

from anisoscope.store import read_table, select
from anisoscope_papers.godey2024.layer_curves import TRAINED

PLACE = RESULTS / "godey2024" / "packaged"
NAMES = {
    "minilm": "MiniLM, text",
    "rxnfp-pretrained": "BERT, chemical reactions",
    "rxnfp-finetuned": "the same, fine-tuned",
    "rxnfp-finetuned-10k": "the same, fine-tuned on 10,000 reactions",
    "rxnmapper": "ALBERT, chemical reactions",
    "antiberty": "BERT, letters of antibodies",
    "whisper-tiny.en, encoder": "Whisper-tiny.en, speech: encoder",
    "whisper-tiny.en, decoder": "Whisper-tiny.en, speech: decoder",
    "distillmos": "distillmos, speech",
    "saliency-vit": "ViT-S/14, photographs",
    "resnet20": "ResNet-20",
    "resnet56": "ResNet-56",
    "crepe-tiny": "CREPE, pitch (convolutional)",
    "efficientnet-lite0": "EfficientNet-Lite0",
    "efficientnet-lite0, ReLUs": "EfficientNet-Lite0 inside its blocks",
}
"""Networks in the order of the table, by the names of their records."""
SAYS = {
    "anisotropic": ("a layer is anisotropic", "no layer is anisotropic"),
    "every layer at least 0.2": ("every layer has A ≥ .2", "a layer has A < .2"),
    "layers-above-q95": ("every layer is anisotropic", "a layer is not anisotropic"),
    "mostly isotropic": (
        "convolutional, its middle layer has A < .2",
        "convolutional, its middle layer has A > .2",
    ),
    "ResNet the exception": ("a ResNet is anisotropic", "a ResNet is not anisotropic"),
    "ResNet with depth": (
        "in a ResNet A falls with depth",
        "in a ResNet A does not fall with depth",
    ),
    "text Transformers": ("drift and A go together", "drift and A do not go together"),
    "other speech models": (
        "drift and A go together",
        "drift and A do not go together",
    ),
    "vision Transformers": (
        "drift and A go together",
        "drift and A do not go together",
    ),
    "not correlated": (
        "drift and A do not go together, as in its family",
        "drift and A go together (the paper: not in convolutional networks)",
    ),
}
"""What a claim that holds, and one that fails, says of a network, in the words of the table."""
TRAINING = "effect of training"
"""Claim on the mean A over layers, trained less untrained; the paper shows trained models only."""
STUDIES = ("fig1", "fig2", "fig3a", "fig3b", "fig4", "fig5", "fig16", "fig18")


def networks_table() -> list[str]:
    """Return the lines of a table in Markdown: a row per network, with its A, what agrees with the paper and what does
    not.

    Only verdicts that decide something stand in it. A claim that two figures make is named once.
    """
    # Dictionaries without values: sets that keep the order.
    agrees: dict[str, dict[str, None]] = {name: {} for name in NAMES}
    against: dict[str, dict[str, None]] = {name: {} for name in NAMES}
    changes: dict[str, list[float]] = {}
    for verdict in _verdicts():
        # `NETWORK on CORPUS`: one network may be measured on several.
        network = str(verdict["subject"]).partition(" on ")[0]
        if verdict["claim"] == TRAINING and verdict["value"] is not None:
            changes.setdefault(network, []).append(verdict["value"])
        if network not in NAMES or verdict["claim"] not in SAYS:
            continue
        holds, fails = SAYS[verdict["claim"]]
        if verdict["outcome"] == "holds":
            agrees[network][holds] = None
        elif verdict["outcome"] == "fails":
            against[network][fails] = None
    ranges = _ranges()
    head = (
        "network",
        "A, lowest to highest layer",
        "training changes A by",
        "agrees with the paper",
        "speaks against it",
    )
    lines = [table_row(head), table_row(("---",) * len(head))]
    for network, name in NAMES.items():
        # Networks that no figure measured have no row.
        if network in ranges:
            lowest, highest = ranges[network]
            change = " and ".join(
                f"{value:+.2f}".replace("-", "−") for value in changes.get(network, [])
            )
            both = ("; ".join(agrees[network]), "; ".join(against[network]))
            lines.append(
                table_row((name, f"{lowest:.2f} to {highest:.2f}", change, *both))
            )
    return lines


def _verdicts() -> Iterator[dict[str, Any]]:
    """Yield the verdicts of all studies on networks that others trained."""
    for study in STUDIES:
        yield from distinct_verdicts(PLACE / study / "study.json")


def _ranges() -> dict[str, tuple[float, float]]:
    """Return {network: (lowest, highest A of its layers)} as trained, over all data that it was measured on."""
    found: dict[str, tuple[float, float]] = {}
    for study in STUDIES:
        records = read_table(PLACE / study / "records.parquet")
        trained = records[records["model"].str.endswith(TRAINED, na=False)]
        rows = select(
            trained,
            metric="mean_cosine",
            site="hidden",
            token_policy="all",
            head=None,
            component=None,
        )
        for model, values in rows.groupby("model")["value"]:
            network = str(model).removesuffix(TRAINED).partition(" on ")[0]
            lowest, highest = float(values.min()), float(values.max())
            before = found.get(network, (lowest, highest))
            found[network] = min(lowest, before[0]), max(highest, before[1])
    return found
