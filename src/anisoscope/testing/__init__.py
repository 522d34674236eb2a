"""Check a metric of your own as ours are checked: `check_metric(METRIC)` in a test, or law by law.

May import anything below.
"""

from anisoscope.testing.laws import (
    LAWS as LAWS,
    Law as Law,
    LawBroken as LawBroken,
    check_metric as check_metric,
    laws_of as laws_of,
)
