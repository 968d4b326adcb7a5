"""From a request to results that last: plan its cells, run each in its process, keep records.

axes (texts) · plan (what would run) · run (one cell) · pool, child (processes) · runner (all
cells) · record, lock, store (a results directory) · status (where it stands) · symptoms, doctor
(what is wrong with it).
"""
