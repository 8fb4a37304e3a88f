"""The part of ncclt that works inside the user's processes; copied there as the package `_ncclt_recording`.

It stands alone: it imports nothing of ncclt, runs on Python 3.8 and later, and loads no heavy module before the
program itself imports PyTorch. Its own errors are written into the journal and never reach the training.
The folder in which it works is laid out in `ncclt.profile.record.plan`, and the journals are read by
`ncclt.profile.record.ranks`.
"""
