"""Backbone `verl`: rollout and training take turns on the same devices."""
