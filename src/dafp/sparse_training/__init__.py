"""Training towards sparsity: the penalty on BN scales and its automatic control."""
