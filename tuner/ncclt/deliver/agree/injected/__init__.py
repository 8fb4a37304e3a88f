"""The part of ncclt that compares the ranks of a job; copied into its processes as the package `_ncclt_agreement`.

It stands alone: it imports nothing of ncclt, runs on Python 3.8 and later, and loads nothing more in a process that
does not import torch.distributed. Its own errors never reach the training.
"""
