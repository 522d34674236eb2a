"""A corpus that needs no network: a document for every letter."""

from string import ascii_lowercase

from anisoscope.data.corpora import NamedCorpus
from anisoscope.data.splitting import SplitText


def letters(limit=None):
    """Documents, and where they came from."""
    documents = [
        " ".join([letter * (i % 5 + 1) for i in range(12)])
        for letter in ascii_lowercase
    ]
    return SplitText(documents[:limit], "letters", "letter"), {"kind": "guest"}


CORPORA = {
    "guest-letters": NamedCorpus(
        "text", "a document for every letter", maker="guest.corpora:letters"
    )
}
