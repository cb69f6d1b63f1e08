"""Runs the episodes of a step: order, deadlines, failures, stops, and groups of judged episodes."""
