"""Hand-written stand-ins at the project's seams, shared by all tests."""
