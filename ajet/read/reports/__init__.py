"""Reports about a run folder for people: transcripts, audits, replays, evaluations."""
