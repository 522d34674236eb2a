"""What a metric reads, as types, one file each: where in a model, what a pass keeps of it, how the table names it, and
the data that a metric of it is tested on.

May import: `sums`, `batch`, `axes`, `errors`, and `capture` for test data alone.
"""

from anisoscope.reads.base import Reads as Reads
from anisoscope.reads.classes import Classes as Classes
from anisoscope.reads.extremes import (
    Keys as Keys,
    Logits as Logits,
    Sequences as Sequences,
)
from anisoscope.reads.modalities import Modalities as Modalities
from anisoscope.reads.pairs import LayerPair as LayerPair
from anisoscope.reads.query_key import QueryKey as QueryKey
from anisoscope.reads.rows import (
    CentredRows as CentredRows,
    Rows as Rows,
    Scores as Scores,
)
from anisoscope.reads.run_pairs import RunPair as RunPair
from anisoscope.reads.sample import Sample as Sample
from anisoscope.reads.vectors import Vectors as Vectors
from anisoscope.reads.weights import Weights as Weights
