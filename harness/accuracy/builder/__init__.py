"""Questions out of a user's own texts: long documents, and gaps in their sentences that only the document fills."""

from harness.accuracy.builder.build import Built, Wanted, build
from harness.accuracy.builder.texts import Texts, read_texts

__all__ = ["Built", "Texts", "Wanted", "build", "read_texts"]
