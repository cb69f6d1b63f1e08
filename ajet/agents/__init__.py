"""The agents that a config can name. They are ordinary workflows, as users write them."""
