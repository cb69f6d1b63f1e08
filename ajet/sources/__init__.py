"""Makes tasks from documents, recorded conversations and public data sets."""
