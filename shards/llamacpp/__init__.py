"""The llama.cpp engine: stages of a GGUF on the CPU, through llama-cpp-python."""
