"""What a study could not have: rows of its records that say so, and verdicts and charts where nothing could be had."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from anisoscope.studies.judge import stated
from anisoscope.studies.study import STANDS_IN, WITHHELD, Study, Verdict


def lacking(records: pd.DataFrame) -> dict[str, str]:
    """What the records of a study are without, or have from another corpus, with the reasons."""
    rows = records[records["metric"].isin((WITHHELD, STANDS_IN))]
    named = rows["model"].where(rows["metric"] == WITHHELD, rows["model"] + " (" + rows["corpus"] + " stands in)")
    return dict(zip(named, rows["component"], strict=True))


def bare(records: pd.DataFrame) -> bool:
    """Whether nothing at all could be had."""
    return bool(records["metric"].isin((WITHHELD, STANDS_IN)).all())


def judged(study: Study, records: pd.DataFrame) -> Sequence[Verdict]:
    """The verdicts on the records; where nothing could be had, that."""
    if not bare(records):
        return study.judge(records)
    why = "; ".join(dict.fromkeys(lacking(records).values()))
    return [stated(claim, None, "not measured", reason=why) for claim in study.claims]


def drawn(study: Study, records: pd.DataFrame) -> Mapping[str, Any]:
    """The charts of the records; none where nothing could be had."""
    return {} if bare(records) else study.draw(records)
