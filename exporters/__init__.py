"""Making a model package from an OpenVINO IR folder, a GGUF file or a Hugging Face model."""
