"""Charts: builders of every kind of plot, one style, and files that are identical whenever they are drawn again.

May import: `sums`, `axes`, `errors`, `extras`, `store`.
"""

from anisoscope.extras import require_extra

require_extra(
    "report", "to draw charts"
)  # before a module here imports what draws them
