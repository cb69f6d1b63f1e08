"""Import paths of other systems: files of their users run unchanged. ajet never imports it."""
