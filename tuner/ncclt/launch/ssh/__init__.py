"""Launch by ssh, on clusters without a scheduler."""
