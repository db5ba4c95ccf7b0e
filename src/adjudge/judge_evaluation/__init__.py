"""What says where a judge is wrong: benchmarks, probes and judge swaps."""
