"""Harbor's task folders: an instruction, a container to work in, and tests that give the reward."""
