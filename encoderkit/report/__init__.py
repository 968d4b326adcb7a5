"""From records to a verdict. Nothing here imports torch or opens a checkpoint."""
