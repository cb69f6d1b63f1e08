"""Reports about a run folder for people: transcripts, audits, replays, evaluations.

In: the records of a run (core/record). Out: text and tables. Ignores training.
"""
