"""The ranks' end of a transfer of weights: verified, staged, and applied completely or not at all."""
