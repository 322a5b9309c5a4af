"""What layers receive on calibration data: inputs, patches, and least squares on them."""
