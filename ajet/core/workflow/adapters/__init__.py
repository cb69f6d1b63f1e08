"""One file for each agent framework: its model interface over the episode's recorder."""
