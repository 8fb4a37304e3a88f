"""Read Megatron-LM, Megatron Core and NeMo logs."""
