"""Charts: builders of every kind of plot, one style, and files that are identical whenever they are drawn again.

May import: `sums`, `axes`, `errors`, `extras`, `store`.
"""

from anisoscope.extras import require_extra

# Before a module here imports altair: without the extra the error names the cure.
require_extra("report", "to draw charts")
