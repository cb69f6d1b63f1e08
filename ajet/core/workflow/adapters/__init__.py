"""The model interfaces of agent frameworks over the episode's recorder, one file for each."""
