"""The replica in this process; those over HTTP are in `ajet/servers`."""
