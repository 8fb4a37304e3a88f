"""The part of ncclt that works inside the user's processes; copied there as the package `_ncclt_recording`.

It stands alone: it imports nothing of ncclt, runs on Python 3.8 and later, and loads nothing of weight before the
program itself imports PyTorch. Whatever goes wrong in it is written into the journal and never reaches the training.
The folder in which it works is laid out in `ncclt.profile.record.plan`, and the journals are read by
`ncclt.profile.record.ranks`.
"""
