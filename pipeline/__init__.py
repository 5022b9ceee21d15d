"""Shards become a running model: wire, stage process, scheduler, sampler, tokenizer, head."""
