"""What a shard is and how one runs: package manifest, weight store, graph cut, stage runtimes."""
