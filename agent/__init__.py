"""The process on a PC: command line, HTTP API, local chain, benchmarks."""
