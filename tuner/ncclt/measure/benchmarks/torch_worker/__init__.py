"""What the ranks run: one file that needs Python 3.9 and PyTorch, for it may be copied to where ncclt is not."""
