"""Model what NCCL itself does: its variables, its choices and its plugin interface."""
