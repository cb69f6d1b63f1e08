"""What a person reads about a run folder: transcripts, audits, replays, evaluations.

In: the records of a run (core/record). Out: text and tables. Ignores training.
"""
