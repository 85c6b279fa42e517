"""What is measured: every way to batch behind one protocol, on data of known lengths."""
