"""Judged groups between an explorer and a trainer. In: groups. Out: batches no older than asked.

Not covered: who explores and who trains (backbones/disaggregated).
"""
