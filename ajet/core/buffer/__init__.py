"""Judged groups between explorer and trainer. In: groups. Out: batches within a staleness bound.

Not covered: explorer and trainer themselves (backbones/disaggregated).
"""
